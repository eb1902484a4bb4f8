package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

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
