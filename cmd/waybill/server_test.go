package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
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
	for name, text := range map[string]string{"users": users, "new.json": `{"n":2}`, "waybill.yaml": "transports: { events: { dsn: \"amqp://127.0.0.1:1/?exchange=events\" } }\noutbox: { to: events }\nmessages: { order.placed: {} }\ndatabase: sqlite://./shop.db\n"} {
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
		SELECT 'worker', 'billing', 'failed', 'failed', randomblob(16), 'order.placed', 'k' || n, '{"tenant":"acme"}', CAST('{"n":1}' AS BLOB), unixepoch() * 1000000, 9, unixepoch() * 1000000, unixepoch() * 1000000, 'no card ' || (n % 3), 'invoices', 'f' || (n % 3) FROM n`); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		`INSERT INTO waybill_outbox_blocked (transport, partition_key, row_id, message_id, message_name, failures, first_failed_at, next_attempt_at, last_error, policy)
		 WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1250)
		 SELECT 1, 'b' || n, n, randomblob(16), 'order.placed', 3, 1700000000000000, 9000000000000000, 'exchange is full', 'block' FROM n`,
		`INSERT INTO waybill_retry (queue, message_id, message_name, partition_key, body, failures, held, held_until)
		 VALUES ('billing', randomblob(16), 'order.placed', 'parked', '{}', 1, 1, 9223372036854775807), ('billing', randomblob(16), 'order.placed', 'stuck', '{}', 1, 1, 9223372036854775807)`,
		`INSERT INTO waybill_schedule (name, spec, missed, done_until, next_tick) VALUES ('late', '@hourly', 'latest', 1700000000000000, 1700000000000000), ('next', '@hourly', 'latest', 1700000000000000, 4000000000000000)`,
		`INSERT INTO waybill_schedule (name, spec, missed, done_until, next_tick, requested_at) VALUES ('pending', '@hourly', 'latest', 1700000000000000, 4000000000000000, 1700000000123000)`,
		`INSERT INTO waybill_inbox (handler, dedup_key, message_id, processed_at) SELECT 'invoices', 'done', message_id, 1700000000000000 FROM waybill_failed WHERE id = 5`,
	} {
		if _, err := db.SQL().ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%v\n%s", err, statement)
		}
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
		{"inbox", "list"}, {"inbox", "list", "--handler", "billing", "--limit", "0"}, {"inbox", "list", "--limit", "1"},
		{"failed", "retry", "--fingerprint", "f1", "--dry-run"},
		{"outbox", "blocked", "--limit", "0"}, {"outbox", "blocked", "--limit", "1100"}, {"outbox", "blocked", "--key", "b7"}, {"inbox", "lookup", "done"},
		{"schedules", "list"}, {"schedules", "trigger", "late", "--dry-run"}, {"schedules", "trigger", "pending"}, {"schedules", "trigger", "lat"}, {"workers", "list"}, {"stats", "--fail-if", "blocked>1"}, {"workers", "stop", "--all"},
	} {
		code, local, _ := runMain(t, append(args, "--json")...)
		remoteCode, remote, stderr := runMain(t, append(args, "--json", "--server", url)...)
		if remoteCode != code || ages.ReplaceAllString(remote, "") != ages.ReplaceAllString(local, "") {
			t.Errorf("waybill %s --server: exit %d, want %d\n%s%.500s\nwant\n%.500s", strings.Join(args, " "), remoteCode, code, stderr, remote, local)
		}
	}
}

// ages are those figures of stats that grow from one command to the next.
var ages = regexp.MustCompile(`"oldest_age_seconds":[0-9.]+`)

func TestServerAsksForTheRole(t *testing.T) {
	url := served(t)
	db := reported(t)
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
		{"viewer", 4, "this needs the role operator", []string{"outbox", "release", "b1"}},
		{"operator", 0, "1 blocked entry released", []string{"outbox", "release", "b1"}},
		{"operator", 3, "nothing to release", []string{"outbox", "release", "nothing"}},
		{"viewer", 4, "this needs the role operator", []string{"retries", "release", "--all"}},
		{"operator", 0, "1 parked message skipped", []string{"retries", "release", "stuck", "--skip-head"}},
		{"operator", 0, " stuck ", []string{"failed", "list", "--failures", "failed", "--source", "worker", "--key", "stuck"}},
		{"operator", 0, "1 parked message released", []string{"retries", "release", "parked"}},
		{"operator", 3, "nothing to release", []string{"retries", "release", "--all"}},
		{"viewer", 4, "are not shown", []string{"failed", "edit", "5", "--body-file", "new.json"}},
		{"operator", 0, "message 5 edited", []string{"failed", "edit", "5", "--body-file", "new.json"}},
		{"operator", 0, "its body has not changed", []string{"failed", "edit", "5", "--body-file", "new.json"}},
		{"operator", 4, "this needs the role admin", []string{"workers", "stop", "billing", "--yes"}},
		{"admin", 0, "1 worker process told to stop", []string{"workers", "stop", "billing", "--yes"}},
		{"viewer", 4, "this needs the role operator", []string{"schedules", "trigger", "next", "--yes"}},
		{"operator", 0, "next requested: a process that runs it sends", []string{"schedules", "trigger", "next", "--yes"}},
		{"operator", 0, "next was already requested at 20", []string{"schedules", "trigger", "next", "--yes"}},
		{"operator", 0, "late requested: it waits, because the schedule is overdue", []string{"schedules", "trigger", "late", "--yes"}},
		{"operator", 3, "did you mean \"late\"?", []string{"schedules", "trigger", "latte", "--yes"}},
		{"operator", 4, "this needs the role admin", []string{"workers", "pause", "billing", "--yes"}},
		{"admin", 3, `did you mean "billing"?`, []string{"workers", "pause", "biling", "--yes"}},
		{"admin", 0, "billing is paused: within 5s its workers take no more messages, in 1 worker process", []string{"workers", "pause", "billing", "--reason", "no bank", "--yes"}},
		{"admin", 0, "by admin@dashboard: no bank already", []string{"workers", "pause", "billing", "--yes"}},
		{"viewer", 0, "by admin@dashboard: no bank\n", []string{"workers", "list"}},
		{"viewer", 4, "this needs the role admin", []string{"workers", "resume", "billing", "--yes"}},
		{"admin", 0, "billing is resumed", []string{"workers", "resume", "billing", "--yes"}},
		{"admin", 3, "is not paused", []string{"workers", "resume", "billing", "--yes"}},
		{"viewer", 2, "the API does not cover it", []string{"stats", "--history", "1h"}},
		{"operator", 2, "the API does not cover it", []string{"failed", "retry", "--fingerprint", "f1", "--rate", "100/s", "--stop-after-failures", "5", "--yes"}},
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
	audit, err := db.Audit(t.Context(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]string{}
	for _, e := range audit {
		by[e.Action] = e.Actor
	}
	for action, actor := range map[string]string{"outbox release": "operator@dashboard", "retries release": "operator@dashboard", "retries release --skip-head": "operator@dashboard", "failed edit": "operator@dashboard", "workers stop": "admin@dashboard", "workers pause": "admin@dashboard", "workers resume": "admin@dashboard", "schedules trigger": "operator@dashboard"} {
		if by[action] != actor {
			t.Errorf("the audit has %q of %s, want %s", by[action], action, actor)
		}
	}
}

// reported opens the database of a served dashboard, to which a process has just reported.
func reported(t *testing.T) *waysqlite.DB {
	t.Helper()
	db, err := waysqlite.Open(t.Context(), "shop.db", waysqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.ReportWorkers(t.Context(), worker.Report{ID: "01890a5d-ac96-774b-bcce-b302099a8057", Name: "billing", Host: "app-2", PID: 4711, State: worker.StateRunning, Transports: []string{"billing"}}); err != nil {
		t.Fatal(err)
	}
	return db
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
