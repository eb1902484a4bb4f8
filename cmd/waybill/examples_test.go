//go:build unix

package main

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// examplesProject has what the examples of the help name.
const examplesProject = `
database: sqlite://./waybill.db
transports:
  events: { dsn: "queue://events?database=sqlite%3A%2F%2F.%2Fbroker.db" }
  orders: { dsn: "queue://orders" }
  mail: { dsn: "queue://mail" }
  urgent: { dsn: "queue://urgent" }
  normal: { dsn: "queue://normal" }
outbox: { to: events }
messages: { order.placed: {}, invoice.send: {} }
workers: { orders: {} }
schedules: { nightly: { message: order.placed, cron: "30 2 * * *" } }
`

// exampleExits are the exit codes of examples that cannot do here what they show: no process
// has an admin listener, and SQLite has no buckets.
var exampleExits = map[string]int{
	"waybill health": 2,
	"waybill health --ready --url http://127.0.0.1:9090": 1,
	"waybill schema rebucket 256 --dry-run":              2,
	"waybill schema rebucket 256 --yes":                  2,
}

// goesOn are the commands that work until SIGTERM. Their examples get it after a second.
var goesOn = []string{"bench", "consume", "dashboard", "demo", "relay", "run", "top"}

// The examples of the help run in a project that has what they name: each succeeds, finds
// nothing of what it selects (exit code 3), or goes on until SIGTERM (-1 of the shell). Those
// with servers are run by the scripts bench and demo.
func TestExamplesRun(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"waybill.yaml", "production.yaml"} {
		writeFile(t, name, examplesProject)
	}
	writeFile(t, "orders.jsonl", `{"name":"order.placed","body":{}}`+"\n")
	writeFile(t, "invoice.json", "{}")
	writeFile(t, "users.txt", "ann:$2y$05$bvIG6Nmid91Mu9RcmmWZfO5HJIMCT8riNW0hEp8f6/FuA2/mHZFpe:viewer\n")
	writeFile(t, "handle", "#!/bin/sh\n")
	fatal(t, os.Chmod("handle", 0o700))
	say(t, 0, "schema", "up")
	say(t, 0, "schema", "up", "--database", "sqlite://./broker.db")
	commands := leafCommands()
	ran := 0
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		for line := range strings.Lines(commands[name].Example) {
			line = strings.TrimSpace(line)
			if line == "" || strings.Contains(line, "//localhost/") {
				continue
			}
			ran++
			accepted, limit := []int{0, 3}, time.Minute
			if slices.Contains(goesOn, strings.Fields(name)[0]) {
				accepted, limit = []int{0, 3, -1}, time.Second
			}
			code, out := runExample(t, limit, strings.NewReplacer("/etc/waybill.yaml", "waybill.yaml", ":8080", ":0").Replace(line))
			if want, ok := exampleExits[line]; ok && code != want || !ok && !slices.Contains(accepted, code) {
				t.Errorf("%s: exit code %d\n%s", line, code, out)
			}
		}
	}
	if ran < 70 {
		t.Errorf("%d examples: is the walk still right?", ran)
	}
}

// runExample returns the exit code and the output of a command line, which gets SIGTERM at its
// limit.
func runExample(t *testing.T, limit time.Duration, line string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // as in the scripts
	cmd.Stdout, cmd.Stderr = &out, &out
	fatal(t, cmd.Start())
	stop := time.AfterFunc(limit, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) })
	defer stop.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", line, err)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}
