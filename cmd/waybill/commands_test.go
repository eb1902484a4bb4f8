package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/waycli"
)

// commandsProject is the waybill.yaml of the tests of every command.
const commandsProject = `
database: sqlite://./waybill.db
transports:
  events: { dsn: "queue://events?database=sqlite%3A%2F%2F.%2Fbroker.db" }
  work: { dsn: "queue://work", retry: { max_retries: 3, delay: 4m } }
outbox: { to: events }
messages: { order.placed: {}, mail.sent: {} }
workers: { work: {} }
schedules: { nightly: { message: order.placed, cron: "30 2 * * *" } }
`

// leafCommands returns the commands of the stock binary that do something, by their path
// without the name of the binary.
func leafCommands() map[string]*cobra.Command {
	leaves := make(map[string]*cobra.Command)
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			return
		}
		if !cmd.HasSubCommands() {
			leaves[strings.TrimPrefix(cmd.CommandPath(), "waybill ")] = cmd
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(waycli.New(app()))
	return leaves
}

// A failingCall is a call of a command that must fail with an exit code and say something.
type failingCall struct {
	exit int
	args []string
	says string
}

// commandErrors are calls of each command that fail, without the general ones that
// TestEveryCommandHasErrors makes of all commands.
var commandErrors = map[string][]failingCall{
	"bench":             {{2, args("nothing"), "bench files|relay"}, {2, args("relay", "--case", "nothing"), "its cases are strict"}, {2, args("relay", "--database", "x"), "not a DSN"}},
	"config check":      {{2, args("x"), "usage: "}},
	"config show":       {{2, args("x"), "usage: "}},
	"consume":           {{2, args("work"), "no handlers of its own"}, {2, args("work", "--exec", "true", "--memory-limit", "x"), "such as 256MiB"}, {2, args("work", "--exec", "true", "--drain-timeout", "0"), "--drain-timeout: 0 is not above zero"}},
	"dashboard":         {{2, args("--listen", "x"), "such as 127.0.0.1:8081"}, {4, args("--listen", "0.0.0.0:0"), "give it --users"}, {2, args("--users", "nowhere"), "NAME:HASH:ROLE"}},
	"debug retry":       {{2, args("nothing"), "transports: events, work"}},
	"debug routes":      {{2, args("x"), "usage: "}},
	"demo":              {{2, args("--database", "x"), "not a DSN"}, {2, args("--orders", "0"), "such as --orders 500"}},
	"dispatch":          {{2, args(), "give its name, or --from FILE"}, {2, args("order.place", "{}"), "did you mean"}, {2, args("order.placed", "{"), "it is not JSON"}},
	"doctor":            {{2, args("x"), "usage: "}},
	"failed edit":       {{2, args("first", "--body-file", "waybill.yaml"), "is not the number of a failed message"}, {3, args("99", "--body-file", "waybill.yaml"), "failed list"}},
	"failed groups":     {{2, args("--since", "x"), "neither a time nor an age"}, {2, args("--source", "x"), "outbox or worker"}},
	"failed list":       {{2, args("--state", "x"), "skipped, failed"}, {2, args("--limit=-1"), "0 means all"}},
	"failed remove":     {{2, args(), "nothing is selected"}, {2, args("1", "--all"), "one or the other"}, {3, args("99", "-y"), "failed list"}},
	"failed retry":      {{2, args(), "nothing is selected"}, {2, args("1", "--rate", "x"), "such as 50/s"}, {3, args("--key", "nobody"), "failed list"}},
	"failed show":       {{2, args(), "usage: "}, {2, args("first"), "is not the number of a failed message"}, {3, args("99"), "failed list"}},
	"health":            {{2, args(), "there is no listener to ask"}, {2, args("--url", "x"), "such as http://"}, {1, args("--url", "http://127.0.0.1:1"), "--admin-listen"}},
	"inbox list":        {{2, args("--limit=-1"), "0 means all"}},
	"inbox lookup":      {{2, args(), "usage: "}, {3, args("unknown"), "inbox.retention"}},
	"inbox prune":       {{2, args("--older-than", "0"), "0 is not above zero"}, {2, args("--older-than", "x"), "is not a duration"}, {2, args("--older-than=-1h"), `"-1h" is negative`}},
	"inbox stats":       {{2, args("x"), "usage: "}},
	"outbox blocked":    {{2, args("--limit=-1"), "0 means all"}},
	"outbox list":       {{2, args("--limit=-1"), "0 means all"}},
	"outbox release":    {{2, args(), "nothing is selected"}, {2, args("k", "--all"), "exclude each other"}, {3, args("k"), "outbox blocked"}},
	"outbox stats":      {{2, args("--transport", "evnts", "--fail-if", "pending>0"), "unknown transport"}, {2, args("--fail-if", "parked>0"), "ask `stats --fail-if`"}, {2, args("--fail-if", "x"), "such as 'pending>1000'"}},
	"preflight":         {{2, args("nothing"), "transports: events, work"}, {2, args("--sample", "0"), "is less than 1"}},
	"relay":             {{2, args("--workers", "0"), "--workers: 0 is not above zero"}, {2, args("x"), "usage: "}, {2, args("--admin-listen", "x"), "choose another address"}},
	"retries list":      {{2, args("--limit=-1"), "0 means all"}},
	"retries release":   {{2, args(), "nothing is selected"}, {2, args("k", "--all"), "exclude each other"}, {3, args("k"), "retries list"}},
	"run":               {{2, args("nothing"), "parts: relay"}, {2, args("--admin-listen", "x"), "choose another address"}},
	"schedules list":    {{2, args("x"), "usage: "}},
	"schedules trigger": {{2, args(), "usage: "}, {3, args("nightly"), "no process has run it yet"}, {3, args("x"), "there are no schedules"}},
	"schema print":      {{2, args("--dialect", "x"), "dialects: mysql"}, {2, args("--schema", "x"), "has no schemas"}},
	"schema rebucket":   {{2, args(), "usage: "}, {2, args("x"), "a power of two"}, {2, args("32"), "there is nothing to change"}},
	"schema status":     {{2, args("x"), "usage: "}},
	"schema up":         {{2, args("x"), "usage: "}},
	"stats":             {{2, args("--fail-if", "x"), "such as 'pending>1000'"}, {2, args("--history", "1s"), "such as 1h"}},
	"top":               {{2, args("--log-level", "x"), "levels: debug"}},
	"version":           {{2, args("x"), "usage: "}, {2, args("--log-level", "x"), "levels: debug"}},
	"workers list":      {{2, args("x"), "usage: "}},
	"workers pause":     {{2, args(), "usage: "}, {2, args("w"), "transports: events, work"}},
	"workers resume":    {{2, args(), "usage: "}, {3, args("work"), "workers list"}},
	"workers stop":      {{2, args(), "nothing is selected"}, {2, args("w", "--all"), "exclude each other"}, {3, args("w"), "there are no workers"}},
}

func args(words ...string) []string { return words }

var (
	// Commands that read no configuration.
	withoutFile = []string{"bench", "demo", "version"}
	// Commands that open no database, or only after what the call of the walk lacks.
	withoutDatabase = []string{"bench", "config check", "config show", "consume", "debug retry", "debug routes", "demo", "health", "schema print", "version"}
	// Arguments of the general calls, for commands that cannot do without.
	needed = map[string][]string{
		"dispatch": {"order.placed", "{}"}, "failed edit": {"1"}, "failed remove": {"1"}, "failed retry": {"1"}, "failed show": {"1"},
		"inbox lookup": {"x"}, "outbox release": {"k"}, "retries release": {"k"}, "schedules trigger": {"nightly"}, "schema rebucket": {"32"}, "workers pause": {"work"}, "workers resume": {"work"}, "workers stop": {"w"},
	}
)

// Each command has three errors or more; each says what is wrong and, as a hint, what to do.
func TestEveryCommandHasErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	writeFile(t, "waybill.yaml", commandsProject)
	writeFile(t, "typo.yaml", "databse: sqlite://./waybill.db\n")
	say(t, 0, "schema", "up")
	commands := leafCommands()
	for _, name := range slices.Sorted(maps.Keys(commandErrors)) {
		if commands[name] == nil {
			t.Errorf("there is no command %q", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		if len(commandErrors[name]) == 0 {
			t.Errorf("waybill %s: commandErrors has no error of its own", name)
		}
		calls := append([]failingCall{{2, args("--nonsense"), "unknown flag: --nonsense"}}, commandErrors[name]...)
		if !slices.Contains(withoutFile, name) {
			calls = append(calls, failingCall{2, append(args("--config", "typo.yaml"), needed[name]...), `did you mean "database"?`})
		}
		if !slices.Contains(withoutDatabase, name) {
			calls = append(calls, failingCall{6, append(args("--database", "mysql://u@127.0.0.1:1/shop"), needed[name]...), "check that the database runs there"})
		}
		if len(calls) < 3 {
			t.Errorf("waybill %s: %d errors, want 3", name, len(calls))
		}
		for _, call := range calls {
			fails(t, call, slices.Concat(strings.Fields(name), call.args, []string{"--json"}))
		}
	}
}

// fails makes a call, which must print nothing but an error with a hint.
func fails(t *testing.T, call failingCall, words []string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	exit := waycli.Main(t.Context(), app(), words, strings.NewReader(""), &stdout, &stderr)
	var answer struct {
		Errors []struct{ Message, Hint string }
		Exit   int `json:"exit_code"`
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	err := json.Unmarshal([]byte(lines[len(lines)-1]), &answer) // log lines may precede it
	if err != nil || exit != call.exit || answer.Exit != exit || stdout.Len() > 0 {
		t.Errorf("waybill %s: exit code %d, want %d: %v\n%s%s", strings.Join(words, " "), exit, call.exit, err, &stdout, &stderr)
		return
	}
	for _, e := range answer.Errors {
		if e.Message == "" || e.Hint == "" {
			t.Errorf("waybill %s: %q does not say what to do", strings.Join(words, " "), e.Message)
		}
	}
	if !strings.Contains(fmt.Sprint(answer.Errors), call.says) {
		t.Errorf("waybill %s: %v, want %q", strings.Join(words, " "), answer.Errors, call.says)
	}
}
