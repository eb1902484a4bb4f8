//go:build unix

package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/cmd/waybill/internal/bench"
	"github.com/waybill-go/waybill/cmd/waybill/internal/demo"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waycli"
)

var update = flag.Bool("update", false, "write the goldens")

const messageID = "01890a5d-ac96-774b-bcce-b302099a8057"

// jsonStates are the states of a project, one after another, with the commands that
// show them.
var jsonStates = []struct {
	enter func(*testing.T)
	show  []jsonStep
}{
	{
		func(*testing.T) {},
		[]jsonStep{
			{"schema up", 0, args("schema", "up")},
			{"schema status", 0, args("schema", "status")},
			{"schema print", 0, args("schema", "print", "--prefix", "shop_")},
			{"version", 0, args("version")},
			{"config check", 0, args("config", "check")},
			{"config show", 0, args("config", "show")},
			{"debug retry", 0, args("debug", "retry")},
			{"debug routes", 0, args("debug", "routes")},
			{"doctor", 7, args("doctor", "--config", "short.yaml")},
			{"dispatch", 0, args("dispatch", "order.placed", "{}", "--key", "k", "--id", messageID)},
			{"outbox list", 0, args("outbox", "list")},
		},
	},
	{
		aRefusedMessage,
		[]jsonStep{
			{"relay", 5, args("relay", "--drain")},
			{"outbox blocked", 0, args("outbox", "blocked")},
			{"outbox stats", 0, args("outbox", "stats")},
		},
	},
	{
		failingMessages,
		[]jsonStep{
			{"consume", 0, args("consume", "work", "--limit", "4", "--exec",
				`case $WAYBILL_MESSAGE_NAME$WAYBILL_PARTITION_KEY in order.placed) ;; mail.sentretried) exit 1;; *) exit 65;; esac`)},
			{"inbox stats", 0, args("inbox", "stats")},
			{"inbox list", 0, args("inbox", "list")},
			{"inbox lookup", 0, args("inbox", "lookup", messageID)},
			{"inbox prune", 0, args("inbox", "prune", "-y")},
			{"retries list", 0, args("retries", "list")},
			{"failed groups", 0, args("failed", "groups")},
			{"failed list", 0, args("failed", "list")},
			{"failed show", 0, args("failed", "show", "1")},
			{"preflight", 7, args("preflight")},
			{"schedules trigger", 0, args("schedules", "trigger", "weekly", "-y")},
			{"schedules list", 0, args("schedules", "list")},
		},
	},
	{
		aBusyWorker,
		[]jsonStep{
			{"workers pause", 0, args("workers", "pause", "events", "--reason", "it is moved", "-y")},
			{"stats", 0, args("stats")},
			{"stats --history", 0, args("stats", "--history", "1h")},
			{"top", 0, args("top")},
			{"workers list", 0, args("workers", "list")},
			{"workers resume", 0, args("workers", "resume", "events", "-y")},
			{"workers stop", 0, args("workers", "stop", "--all", "-y")},
			{"failed remove", 0, args("failed", "remove", "--all", "--dry-run")},
			{"failed edit", 0, args("failed", "edit", "1", "--body-file", "body.json", "-y")},
			{"failed retry", 0, args("failed", "retry", "1", "-y")},
			{"retries release", 0, args("retries", "release", "parked", "-y")},
			{"outbox release", 0, args("outbox", "release", "k", "-y")},
		},
	},
}

// A jsonStep is a command that ends by itself, and its golden.
type jsonStep struct {
	golden string // the command, without its arguments
	exit   int
	args   []string
}

// noRows are the commands whose answer the test gets in another way.
var noRows = map[string]func(*testing.T) string{
	"run":       func(t *testing.T) string { return untilSaid(t, "service started", "run", "schedules") },
	"dashboard": func(t *testing.T) string { return untilSaid(t, `"url"`, "dashboard", "--listen", "127.0.0.1:0") },
	"health": func(t *testing.T) string {
		listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") }))
		defer listener.Close()
		return printed(t, 0, "health", "--url", listener.URL)
	},
	// SQLite has no buckets, and no list of relays.
	"schema rebucket": func(t *testing.T) string {
		dsn := testserver.Postgres(t)
		say(t, 0, "schema", "up", "--database", dsn)
		return printed(t, 0, "schema", "rebucket", "32", "-y", "--database", dsn)
	},
	"stats with a relay": func(t *testing.T) string {
		dsn := testserver.Postgres(t)
		say(t, 0, "schema", "up", "--database", dsn)
		started(t, "relay started", "relay", "--database", dsn)
		until(t, `"relays":[{`, func() string { return say(t, 0, "stats", "--json", "--database", dsn) })
		return printed(t, 0, "stats", "--database", dsn)
	},
	// Other tests run the last two, which take long.
	"bench": func(t *testing.T) string {
		var out bytes.Buffer
		fatal(t, printResults(&out, []bench.Result{{}}, true))
		return out.String()
	},
	"demo": func(t *testing.T) string {
		var out bytes.Buffer
		fatal(t, printVerdict(&out, demo.Verdict{}, true))
		return out.String()
	},
}

// Each command prints one JSON document with --json, whose keys and types are those of its
// file in testdata/json. With -update it writes them.
func TestEveryCommandHasJSON(t *testing.T) {
	goldens, err := filepath.Abs("testdata/json")
	fatal(t, err)
	t.Chdir(t.TempDir())
	writeFile(t, "waybill.yaml", commandsProject)
	writeFile(t, "short.yaml", strings.Replace(commandsProject, "max_retries: 3, delay: 4m", "max_retries: 1, delay: 1s", 1)) // retries end before a restart does
	writeFile(t, "body.json", "{}")
	say(t, 0, "schema", "up", "--database", "sqlite://./broker.db")

	missing := leafCommands()
	shown := func(name, answer string) {
		delete(missing, name)
		compareShape(t, filepath.Join(goldens, strings.ReplaceAll(name, " ", "_")+".golden"), answer)
	}
	for _, state := range jsonStates {
		state.enter(t)
		for _, step := range state.show {
			shown(step.golden, printed(t, step.exit, step.args...))
		}
	}
	for name, answer := range noRows {
		shown(name, answer(t))
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("waybill %s --json: no row of jsonStates or noRows shows its answer", name)
	}
}

// aRefusedMessage relays what is there, and puts a message into the outbox whose headers
// are broken.
func aRefusedMessage(t *testing.T) {
	say(t, 0, "relay", "--drain")
	say(t, 0, "dispatch", "order.placed", `{"refused": true}`, "--key", "k")
	execute(t, `UPDATE waybill_outbox SET headers = '{"tenant": 1}'`)
}

// execute runs a statement on the database of the project.
func execute(t *testing.T, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:waybill.db?_pragma=busy_timeout(5000)")
	fatal(t, err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), statement)
	fatal(t, err)
}

// failingMessages dispatches four messages: handled, parked, given up and retried.
func failingMessages(t *testing.T) {
	say(t, 0, "dispatch", "order.placed", "{}", "--to", "work", "--id", messageID)
	say(t, 0, "dispatch", "order.placed", "{}", "--to", "work", "--key", "parked")
	say(t, 0, "dispatch", "mail.sent", "{}", "--to", "work", "--header", "tenant=acme")
	say(t, 0, "dispatch", "mail.sent", "{}", "--to", "work", "--key", "retried")
	execute(t, `INSERT INTO waybill_schedule (name, spec, missed, done_until, next_tick) VALUES ('weekly', '@weekly', 'latest', 0, 4000000000000000)`)
}

// aBusyWorker starts a worker with a message in hand.
func aBusyWorker(t *testing.T) {
	started(t, "consume started", "consume", "work", "--exec", "exec sleep 60", "--drain-timeout", "10ms")
	say(t, 0, "dispatch", "mail.sent", "{}", "--to", "work")
	until(t, `"busy":1`, func() string { return say(t, 0, "workers", "list", "--json") })
}

// printed runs a command with --json and returns its stdout.
func printed(t *testing.T, exit int, words ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if got := waycli.Main(t.Context(), app(), append(words, "--json"), strings.NewReader(""), &stdout, &stderr); got != exit {
		t.Errorf("waybill %s: exit code %d, want %d\n%s", strings.Join(words, " "), got, exit, &stderr)
	}
	return stdout.String()
}

// untilSaid runs a command with --json, ends it once it has said a text, and returns its stdout.
func untilSaid(t *testing.T, text string, words ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, all transcript
	var running sync.WaitGroup
	running.Go(func() {
		waycli.Main(ctx, app(), append(words, "--json"), strings.NewReader(""), io.MultiWriter(&stdout, &all), &all)
	})
	until(t, text, all.String)
	cancel()
	running.Wait()
	return stdout.String()
}

// compareShape compares the shape of a JSON document with a file.
func compareShape(t *testing.T, file, document string) {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(document), &v); err != nil {
		t.Errorf("%s: it is not one JSON document: %v\n%s", filepath.Base(file), err, document)
		return
	}
	got, err := json.MarshalIndent(shape(v), "", "  ")
	fatal(t, err)
	got = append(got, '\n')
	if *update {
		fatal(t, os.WriteFile(file, got, 0o600))
	}
	if want, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %v; -update rewrites it; got\n%swant\n%s", filepath.Base(file), err, got, want)
	}
}

// shape returns v with the names of types in place of its values, and one element in place
// of those of an array; the name of a field that some of them lack ends with "?".
func shape(v any) any {
	switch v := v.(type) {
	case map[string]any:
		fields := make(map[string]any, len(v))
		for name, value := range v {
			fields[name] = shape(value)
		}
		return fields
	case []any:
		if len(v) == 0 {
			return v
		}
		one := shape(v[0])
		for _, next := range v[1:] {
			one = both(one, shape(next))
		}
		return []any{one}
	case string:
		if _, err := time.Parse(time.RFC3339, v); err == nil {
			return "time"
		}
		return "string"
	case float64:
		return "number"
	case bool:
		return "bool"
	}
	return "null"
}

// both returns the shape of values of two shapes.
func both(a, b any) any {
	if x, ok := a.(map[string]any); ok {
		if y, ok := b.(map[string]any); ok {
			return bothFields(x, y)
		}
	}
	if x, ok := a.([]any); ok {
		if y, ok := b.([]any); ok {
			switch {
			case len(x) == 0:
				return y
			case len(y) == 0:
				return x
			}
			return []any{both(x[0], y[0])}
		}
	}
	if reflect.DeepEqual(a, b) {
		return a
	}
	names := []string{fmt.Sprint(a), fmt.Sprint(b)}
	slices.Sort(names)
	return strings.Join(names, " or ")
}

func bothFields(x, y map[string]any) map[string]any {
	fields := make(map[string]any)
	for _, pair := range [][2]map[string]any{{x, y}, {y, x}} {
		for name, value := range pair[0] {
			name = strings.TrimSuffix(name, "?")
			other, same := pair[1][name]
			optional, maybe := pair[1][name+"?"]
			_, always := pair[0][name]
			switch {
			case same && always:
				fields[name] = both(value, other)
			case same:
				fields[name+"?"] = both(value, other)
			case maybe:
				fields[name+"?"] = both(value, optional)
			default:
				fields[name+"?"] = value
			}
		}
	}
	return fields
}
