package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waycli"
)

func TestDashboardServesUntilItIsStopped(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("waybill.yaml", []byte("database: sqlite://./shop.db\ntransports: { events: { dsn: \"amqp://app:s3cr3t-canary@127.0.0.1:1/?exchange=events\" } }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	if code := waycli.Main(t.Context(), app(), []string{"schema", "up"}, nil, io.Discard, &stderr); code != 0 {
		t.Fatalf("schema up: %s", &stderr)
	}
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- waycli.Main(ctx, app(), []string{"dashboard", "--listen", "127.0.0.1:0"}, nil, in, &stderr)
		in.Close()
	}()
	line, _ := bufio.NewReader(out).ReadString('\n')
	url := strings.TrimSpace(line)
	for _, page := range []string{"", "outbox", "failed", "operations", "retries", "inbox", "workers", "audit", "system"} {
		res, err := http.Get(url + page)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusOK || strings.Contains(string(text), canary) {
			t.Errorf("/%s: %s\n%s", page, res.Status, text)
		}
	}
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d: %s", code, &stderr)
	}
}

func TestDashboardRefusesAnOpenAddress(t *testing.T) {
	t.Chdir(t.TempDir())
	for users, want := range map[string]int{"": 4, "ann:nohash:admin": 2, "ann:$2y$05$x:king": 2, "ann": 2} {
		args := []string{"dashboard", "--listen", "0.0.0.0:0"}
		if users != "" {
			if err := os.WriteFile("users.txt", []byte(users+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--users", "users.txt")
		}
		var stderr bytes.Buffer
		if code := waycli.Main(t.Context(), app(), args, nil, io.Discard, &stderr); code != want {
			t.Errorf("users %q: exit code %d, want %d: %s", users, code, want, &stderr)
		}
	}
}

// A read-only dashboard has sessions that the database lets write nothing.
func TestReadOnlySessionsWriteNothing(t *testing.T) {
	for name, dsn := range map[string]string{"sqlite": "sqlite://" + t.TempDir() + "/shop.db", "postgres": testserver.Postgres(t), "mariadb": testserver.MariaDB(t)} {
		t.Run(name, func(t *testing.T) {
			at := config.MustParseDSN(dsn)
			driver := app().Databases[at.Scheme]
			writer, err := driver.Open(t.Context(), at, waycli.Open{Create: true})
			if err != nil {
				t.Fatal(err)
			}
			defer writer.Close()
			if _, err := writer.SchemaUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			reader, err := driver.Open(t.Context(), at, waycli.Open{ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			if err := reader.SetInboxRetention(t.Context(), time.Hour); err == nil {
				t.Error("a read-only session wrote")
			}
			if err := reader.AddHistory(t.Context(), []history.Row{{At: time.Now()}}); err == nil {
				t.Error("a read-only transaction wrote")
			}
			pages, err := dashboard.New(dashboard.Config{Database: reader, ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			defer pages.Close()
			for _, page := range []string{"/", "/outbox", "/failed", "/retries", "/inbox", "/workers", "/audit", "/system"} {
				r := httptest.NewRequest("GET", "http://localhost"+page, nil)
				r.RemoteAddr = "127.0.0.1:9"
				w := httptest.NewRecorder()
				if pages.ServeHTTP(w, r); w.Code != http.StatusOK {
					t.Errorf("%s answers %d\n%s", page, w.Code, w.Body)
				}
			}
		})
	}
}

func TestDashboardKnowsTokensAndProxies(t *testing.T) {
	t.Chdir(t.TempDir())
	users := "# of the team\nrobot:sha256=" + fmt.Sprintf("%x", sha256.Sum256([]byte("t0ken"))) + ":viewer\nann:proxy:admin+bodies\n"
	for name, text := range map[string]string{"users.txt": users, "proxied.txt": "ann:proxy:admin\n", "waybill.yaml": "database: sqlite://./shop.db\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var stderr bytes.Buffer
	if code := waycli.Main(t.Context(), app(), []string{"schema", "up"}, nil, io.Discard, &stderr); code != 0 {
		t.Fatalf("schema up: %s", &stderr)
	}
	for _, wrong := range [][]string{{"--users", "proxied.txt"}, {"--proxy-header", "X-User"}, {"--users", "users.txt", "--proxy-from", "10.0.0.0/8"}, {"--users", "users.txt", "--proxy-header", "X-User", "--proxy-from", "proxy.local"}} {
		if code := waycli.Main(t.Context(), app(), append([]string{"dashboard", "--listen", "127.0.0.1:0"}, wrong...), nil, io.Discard, &stderr); code != 2 {
			t.Errorf("%v: exit code %d, want 2", wrong, code)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- waycli.Main(ctx, app(), []string{"dashboard", "--listen", "127.0.0.1:0", "--users", "users.txt", "--proxy-header", "X-User", "--proxy-from", "127.0.0.1"}, nil, in, &stderr)
		in.Close()
	}()
	line, _ := bufio.NewReader(out).ReadString('\n')
	for _, tt := range []struct {
		name, value string
		want        string
	}{
		{"Authorization", "Bearer t0ken", "robot, viewer"}, {"Authorization", "Bearer other", "401"}, {"X-User", "ann", "ann, admin"}, {"X-User", "eve", "401"}, {"X-Other", "", "401"},
	} {
		r, err := http.NewRequestWithContext(ctx, "GET", strings.TrimSpace(line), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(tt.name, tt.value)
		res, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if got := res.Status + string(text); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %s answers %s, want %s", tt.name, tt.value, res.Status, tt.want)
		}
	}
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d: %s", code, &stderr)
	}
}
