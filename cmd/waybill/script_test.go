package main

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waycli/sqlite"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"waybill": main,
		"shop":    func() { os.Exit(runShop(shopBus)) },
		"badshop": func() { os.Exit(runShop(badBus)) },
	})
}

// TestScripts runs testdata/script. Besides the commands of testscript they use
//
//	exits CODE COMMAND...   runs a command that must exit with CODE
//	sql FILE STATEMENT      changes a SQLite file
//	rows FILE QUERY WANT    waits up to 10 s until the query's only value is WANT
//	waitfor FILE [TEXT]     waits up to 10 s until FILE exists and contains TEXT
//	bigfile FILE BYTES      writes a JSON body of that size
//	lock FILE               keeps others from writing to a SQLite file
//	unlock                  gives it back
//	terminate               sends SIGTERM to the newest background command
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			// With the race detector a process sleeps for a second at its end.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			env.Values[lockKey{}] = &locked{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "sql": execSQL, "rows": rows, "waitfor": waitFor, "bigfile": bigFile, "lock": lock, "unlock": unlock, "terminate": terminate, "readme": readme,
		},
	})
}

// readme writes the block of the README that builds and runs the binary into a
// file, with the binary of this test in place of the one it builds.
func readme(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: readme FILE")
	}
	text, err := os.ReadFile(filepath.Join(startedIn, "..", "..", "README.md"))
	ts.Check(err)
	_, block, ok := strings.Cut(string(text), "go build -o waybill ./cmd/waybill\n")
	block, _, end := strings.Cut(block, "```")
	if !ok || !end {
		ts.Fatalf("README.md has no block that builds the binary")
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.ReplaceAll(block, "./waybill ", "waybill ")), 0o600))
}

// startedIn is the directory of this package.
var startedIn = func() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	return dir
}()

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func openFile(ts *testscript.TestScript, name string) *sql.DB {
	path := ts.MkAbs(name)
	if _, err := os.Stat(path); err != nil {
		ts.Fatalf("%v", err)
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?_pragma=busy_timeout(5000)")
	ts.Check(err)
	return db
}

func execSQL(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: sql FILE STATEMENT")
	}
	db := openFile(ts, args[0])
	defer db.Close()
	_, err := db.Exec(args[1])
	ts.Check(err)
}

func rows(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: rows FILE QUERY WANT")
	}
	db := openFile(ts, args[0])
	defer db.Close()
	var got string
	eventually(ts, func() bool {
		ts.Check(db.QueryRow(args[1]).Scan(&got))
		return got == args[2]
	}, func() { ts.Fatalf("%s: %s: got %s, want %s", args[0], args[1], got, args[2]) })
}

func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: waitfor FILE [TEXT]")
	}
	eventually(ts, func() bool {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		return err == nil && (len(args) == 1 || strings.Contains(string(text), args[1]))
	}, func() { ts.Fatalf("waited in vain for %s", strings.Join(args, " with ")) })
}

func bigFile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: bigfile FILE BYTES")
	}
	size, err := strconv.Atoi(args[1])
	ts.Check(err)
	const frame = len(`{"pad":""}`)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(`{"pad":"`+strings.Repeat("x", size-frame)+`"}`), 0o600))
}

// eventually polls: what it waits for happens in another process.
func eventually(ts *testscript.TestScript, holds func() bool, fail func()) {
	for start := time.Now(); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			fail()
		}
	}
}

// locked finds the database that lock holds among a script's values.
type locked struct{ db *sql.DB }

func lock(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: lock FILE")
	}
	db := openFile(ts, args[0])
	db.SetMaxOpenConns(1)
	ts.Defer(func() { _ = db.Close() })
	_, err := db.Exec("BEGIN IMMEDIATE")
	ts.Check(err)
	ts.Value(lockKey{}).(*locked).db = db
}

func unlock(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Check(ts.Value(lockKey{}).(*locked).db.Close())
}

type lockKey struct{}

func terminate(ts *testscript.TestScript, neg bool, args []string) {
	running := ts.BackgroundCmds()
	if neg || len(args) > 0 || len(running) == 0 {
		ts.Fatalf("usage: terminate, while a background command runs")
	}
	ts.Check(running[len(running)-1].Process.Signal(syscall.SIGTERM))
}

// runShop is the binary of a user, with handlers.
func runShop(bus func(context.Context, *config.Config) (*waybill.Bus, error)) int {
	ctx, stop := waycli.WithSignals(context.Background())
	defer stop()
	app := waycli.App{
		Name:      "shop",
		Databases: map[string]waycli.Driver{"sqlite": sqlite.Driver()},
		Bus:       bus,
	}
	return waycli.Main(ctx, app, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

type orderPlaced struct {
	OrderID string `json:"orderId"`
}

func (orderPlaced) MessageName() string    { return "order.placed" }
func (m orderPlaced) PartitionKey() string { return m.OrderID }

func shopBus(context.Context, *config.Config) (*waybill.Bus, error) {
	bus := waybill.NewBus("shop")
	waybill.Handle(bus, "print", func(_ context.Context, m orderPlaced) error {
		_, err := os.Stderr.WriteString("shop handles " + m.OrderID + "\n")
		return err
	})
	return bus, nil
}

// orderShipped would lose its partition key in silence.
type orderShipped struct {
	OrderID string `json:"orderId"`
}

func (orderShipped) MessageName() string     { return "order.shipped" }
func (m *orderShipped) PartitionKey() string { return m.OrderID }

func badBus(context.Context, *config.Config) (*waybill.Bus, error) {
	bus := waybill.NewBus("shop")
	waybill.Handle(bus, "ship", func(context.Context, orderShipped) error { return nil })
	return bus, nil
}

func TestSecondSignalExitsAtOnce(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	waybill := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), self, args...)
		cmd.Args[0] = "waybill"
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
		return cmd
	}
	file := "transports: { work: { dsn: queue://work } }\nmessages: { order.placed: {} }\n"
	if err := os.WriteFile(filepath.Join(dir, "waybill.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"schema", "up"}, {"dispatch", "order.placed", "{}"}} {
		if out, err := waybill(args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", args, err, out)
		}
	}
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}
	cmd := waybill("consume", "work", "--exec", "touch started; sleep 2; touch survived")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); !exists("started"); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("the command did not start")
		}
	}
	// Two different ones: the kernel would make one of two that are equal.
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 130 {
		t.Errorf("exit code %d, want 130", got)
	}
	time.Sleep(2500 * time.Millisecond) // the processes are real, and so is their time
	if exists("survived") {
		t.Error("the command outlived the process that ran it")
	}
}
