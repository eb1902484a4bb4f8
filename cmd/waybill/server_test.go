package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waysqlite"
)

// A served dashboard has three users, a dead letter in each of three groups and one in the
// outbox.
func served(t *testing.T) (url string) {
	t.Helper()
	t.Chdir(t.TempDir())
	users := ""
	for _, role := range []string{"viewer", "operator+bodies", "admin"} {
		name, _, _ := strings.Cut(role, "+")
		users += fmt.Sprintf("%s:sha256=%x:%s\n", name, sha256.Sum256([]byte(name+"-t0ken")), role)
	}
	for name, text := range map[string]string{"users": users, "waybill.yaml": "transports: { events: { dsn: \"amqp://127.0.0.1:1/?exchange=events\" } }\noutbox: { to: events }\nmessages: { order.placed: {} }\ndatabase: sqlite://./shop.db\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"schema", "up"}, {"dispatch", "order.placed", `{}`, "--key", "o-9"}} {
		if code, _, stderr := runMain(t, args...); code != 0 {
			t.Fatalf("%v: %s", args, stderr)
		}
	}
	db, err := waysqlite.Open(t.Context(), "shop.db", waysqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.SQL().ExecContext(t.Context(), `INSERT INTO waybill_failed (source, transport, failure_transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, first_failed_at, failed_at, last_error, handler, fingerprint)
		WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1250)
		SELECT 'worker', 'billing', 'failed', 'failed', randomblob(16), 'order.placed', 'k' || n, '{"tenant":"acme"}', '{"n":1}', unixepoch() * 1000000, 9, unixepoch() * 1000000, unixepoch() * 1000000, 'no card ' || (n % 3), 'invoices', 'f' || (n % 3) FROM n`); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		ended <- waycli.Main(ctx, app(), []string{"dashboard", "--listen", "127.0.0.1:0", "--users", "users"}, nil, in, &stderr)
		in.Close()
	}()
	t.Cleanup(func() {
		stop()
		if code := <-ended; code != 0 {
			t.Errorf("dashboard: exit %d: %s", code, &stderr)
		}
	})
	line, _ := bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(line)
}

func runMain(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = waycli.Main(t.Context(), app(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// The commands print the same by the API as from the database.
func TestServerShowsWhatTheDatabaseHas(t *testing.T) {
	url := served(t)
	t.Setenv("WAYBILL_SERVER_TOKEN", "operator-t0ken")
	for _, args := range [][]string{
		{"failed", "list"}, {"failed", "list", "--limit", "0"}, {"failed", "list", "--fingerprint", "f2", "--since", "1d", "--after", "7"}, {"failed", "groups"}, {"failed", "show", "3"},
		{"outbox", "list"}, {"outbox", "blocked"}, {"retries", "list"}, {"inbox", "lookup", "x"}, {"failed", "show", "99999"},
		{"failed", "retry", "--fingerprint", "f1", "--dry-run"},
	} {
		code, local, _ := runMain(t, append(args, "--json")...)
		remoteCode, remote, stderr := runMain(t, append(args, "--json", "--server", url)...)
		if remoteCode != code || remote != local {
			t.Errorf("waybill %s --server: exit %d, want %d\n%s%.500s\nwant\n%.500s", strings.Join(args, " "), remoteCode, code, stderr, remote, local)
		}
	}
}

func TestServerAsksForTheRole(t *testing.T) {
	url := served(t)
	for _, c := range []struct {
		user string
		code int
		says string
		args []string
	}{
		{"nobody", 4, "put a bearer token into WAYBILL_SERVER_TOKEN or --token-file", []string{"failed", "list"}},
		{"viewer", 4, "this needs the role operator, and viewer is viewer", []string{"failed", "retry", "--fingerprint", "f0", "--yes"}},
		{"viewer", 4, "are not shown", []string{"failed", "show", "3"}},
		{"operator", 0, "416 messages dispatched again", []string{"failed", "retry", "--fingerprint", "f0", "--yes"}},
		{"operator", 3, "no failed message is selected", []string{"failed", "retry", "--fingerprint", "f0", "--yes"}},
		{"operator", 4, "this needs the role admin, and operator is operator", []string{"failed", "remove", "1", "--yes"}},
		{"admin", 0, "2 failed messages removed", []string{"failed", "remove", "1", "2", "--yes"}},
		{"admin", 4, "message 1 is removed", []string{"failed", "retry", "1"}},
		{"admin", 2, "the API of the dashboard does not cover it", []string{"schema", "up"}},
		{"admin", 2, "excludes --database", []string{"failed", "list", "--database", "sqlite://./shop.db"}},
	} {
		if err := os.WriteFile("token", []byte(c.user+"-t0ken\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		code, stdout, stderr := runMain(t, append(c.args, "--server", url, "--token-file", "token")...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) || strings.Contains(stdout+stderr, "t0ken") {
			t.Errorf("waybill %s as %s: exit %d, want %d\n%s%s\nwant %q", strings.Join(c.args, " "), c.user, code, c.code, stdout, stderr, c.says)
		}
	}
}

func TestServerAddressesThatLeakAreRefused(t *testing.T) {
	t.Setenv("WAYBILL_SERVER_TOKEN", "t0ken")
	for address, want := range map[string]int{"ftp://x": 2, "https://ann:pw@127.0.0.1:1/": 2, "http://ops.example.com/": 2, "http://127.0.0.1:1/": 6, "nonsense": 2} {
		code, _, stderr := runMain(t, "failed", "list", "--server", address)
		if code != want || strings.Contains(stderr, "t0ken") || strings.Contains(stderr, "pw") && strings.Contains(address, "pw") && strings.Contains(stderr, ":pw@") {
			t.Errorf("--server %s: exit %d, want %d: %s", address, code, want, stderr)
		}
	}
}
