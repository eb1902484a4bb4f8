package main

import (
	"context"
	"database/sql"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waycli/mysql"
	"github.com/waybill-go/waybill/waycli/postgres"
	"github.com/waybill-go/waybill/waycli/rabbitmq"
	"github.com/waybill-go/waybill/waycli/sqlite"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"waybill": main,
		"traced":  func() { os.Exit(runTraced()) },
		"stuck":   func() { os.Exit(runStuck()) },
		"shop":    func() { os.Exit(runShop(shopBus, everyDatabase)) },
		"catalog": func() { os.Exit(runShop(catalogBus, everyDatabase)) },
		"next":    func() { os.Exit(runShop(nextBus, everyDatabase)) },
		"cart":    func() { os.Exit(runShop(cartBus, everyDatabase)) },
		"newcart": func() { os.Exit(runShop(newCartBus, everyDatabase)) },
		"leaky":   func() { os.Exit(runShop(leakyBus, everyDatabase)) },
		"badshop": func() { os.Exit(runShop(badBus, map[string]waycli.Driver{"sqlite": sqlite.Driver()})) },
	})
}

// TestScripts runs testdata/script. Besides the commands of testscript they use
//
//	exits CODE COMMAND...   runs a command that must exit with CODE
//	sql DATABASE STATEMENT  changes a SQLite file, or a database of a server, where
//	                        {outbox} stands for that table of $DATABASE
//	rows DATABASE QUERY WANT
//	                        waits up to 30 s until the query's only value is WANT
//	waitfor FILE [TEXT]     waits up to 30 s until FILE exists and contains TEXT
//	bigfile FILE BYTES      writes a JSON body of that size
//	lock FILE               holds the write lock of a SQLite file
//	unlock                  releases it
//	terminate               sends SIGTERM to the newest background command
//	postgres                makes an empty database: $POSTGRES, and its user, host
//	                        and name in $POSTGRES_USER, _HOST and _NAME
//	mariadb                 the same with MariaDB: $MARIADB, ...
//	database                makes one of the kind that the script runs on, with
//	                        names of tables that are not the default: $DATABASE
//	rabbitmq                makes an empty virtual host: $RABBITMQ, and its
//	                        host:port in $RABBITMQ_HOST
//	tlsserver FILE          answers on $TLS_HOST with the certificate in FILE
//
// The conditions [postgres] and [mariadb] tell the database of a script.
func TestScripts(t *testing.T) { runScripts(t, "postgres", testscript.Params{Dir: "testdata/script"}) }

// TestScriptsOnMariaDB runs the scripts whose output is the same on each database.
func TestScriptsOnMariaDB(t *testing.T) {
	runScripts(t, "mariadb", testscript.Params{Files: []string{
		"testdata/script/stack.txtar", "testdata/script/rebucket.txtar", "testdata/script/failed.txtar",
		"testdata/script/deadletters.txtar", "testdata/script/outage.txtar", "testdata/script/preflight.txtar", "testdata/script/preflightversions.txtar", "testdata/script/doctor.txtar",
	}})
}

func runScripts(t *testing.T, kind string, scripts testscript.Params) {
	testscript.Run(t, testscript.Params{
		Dir: scripts.Dir, Files: scripts.Files,
		Condition: func(cond string) (bool, error) {
			if cond != "postgres" && cond != "mariadb" {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			return cond == kind, nil
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			// With the race detector a process sleeps for a second at its end.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			env.Values[lockKey{}] = &locked{}
			env.Values[kindKey{}] = kind
			env.Values[testKey{}] = env.T() // a testing.TB, as testscript.Run makes them
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "sql": execSQL, "rows": rows, "waitfor": waitFor, "bigfile": bigFile, "lock": lock, "unlock": unlock, "terminate": terminate, "page": page,
			"postgres": newPostgres, "mariadb": newMariaDB, "database": newDatabase, "rabbitmq": newRabbitMQ, "tlsserver": newTLSServer,
		},
	})
}

// page writes the session of docs/commands.md into a file, with the binary of this test
// in place of the one it builds.
func page(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: page FILE")
	}
	text, err := os.ReadFile(filepath.Join(startedIn, "..", "..", "docs", "commands.md"))
	ts.Check(err)
	_, block, ok := strings.Cut(string(text), "go build -o waybill ./cmd/waybill\n")
	block, _, end := strings.Cut(block, "```")
	if !ok || !end {
		ts.Fatalf("docs/commands.md has no block that builds the binary")
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

type testKey struct{}

// kindKey is the key of the kind of database that a script runs on.
type kindKey struct{}

func newPostgres(ts *testscript.TestScript, _ bool, _ []string) {
	setDatabase(ts, "POSTGRES", testserver.Postgres(ts.Value(testKey{}).(testing.TB)))
}

func newMariaDB(ts *testscript.TestScript, _ bool, _ []string) {
	setDatabase(ts, "MARIADB", testserver.MariaDB(ts.Value(testKey{}).(testing.TB)))
}

func newDatabase(ts *testscript.TestScript, _ bool, _ []string) {
	tb := ts.Value(testKey{}).(testing.TB)
	if ts.Value(kindKey{}) == "mariadb" {
		ts.Setenv("DATABASE", testserver.MariaDB(tb)+"?prefix=messaging_")
	} else {
		ts.Setenv("DATABASE", testserver.Postgres(tb)+"&schema=messaging")
	}
}

func setDatabase(ts *testscript.TestScript, name, dsn string) {
	u, err := url.Parse(dsn)
	ts.Check(err)
	ts.Setenv(name, dsn)
	ts.Setenv(name+"_HOST", u.Host)
	ts.Setenv(name+"_USER", u.User.String())
	ts.Setenv(name+"_NAME", strings.TrimPrefix(u.Path, "/"))
}

func newRabbitMQ(ts *testscript.TestScript, _ bool, _ []string) {
	dsn := testserver.RabbitMQ(ts.Value(testKey{}).(testing.TB))
	u, err := url.Parse(dsn)
	ts.Check(err)
	ts.Setenv("RABBITMQ", dsn)
	ts.Setenv("RABBITMQ_HOST", u.Host)
}

func newTLSServer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: tlsserver FILE")
	}
	server := httptest.NewUnstartedServer(nil)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	ts.Defer(server.Close)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), cert, 0o600))
	ts.Setenv("TLS_HOST", server.Listener.Addr().String())
}

// openDatabase opens a DSN or a file.
func openDatabase(ts *testscript.TestScript, name string) *sql.DB {
	dsn, err := config.ParseDSN(name)
	if err != nil {
		return openFile(ts, name)
	}
	db, err := openServer(dsn, name)
	ts.Check(err)
	return db
}

// openServer opens a database of a server, by its DSN and the text of that.
func openServer(dsn config.DSN, text string) (*sql.DB, error) {
	if dsn.Scheme != "mysql" {
		return sql.Open("pgx", strings.Replace(text, "&schema=messaging", "", 1)) // an option of waybill only
	}
	cfg, err := mysql.Config(dsn)
	if err != nil {
		return nil, err
	}
	connector, err := driver.NewConnector(cfg)
	return sql.OpenDB(connector), err
}

var tableForm = regexp.MustCompile(`\{([a-z_]+)\}`)

// qualified puts the names of $DATABASE's tables into a statement.
func qualified(ts *testscript.TestScript, statement string) string {
	if ts.Value(kindKey{}) == "mariadb" {
		return tableForm.ReplaceAllString(statement, "messaging_$1")
	}
	return tableForm.ReplaceAllString(statement, "messaging.waybill_$1")
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
		ts.Fatalf("usage: sql DATABASE STATEMENT")
	}
	db := openDatabase(ts, args[0])
	defer db.Close()
	_, err := db.Exec(qualified(ts, args[1]))
	ts.Check(err)
}

func rows(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: rows DATABASE QUERY WANT")
	}
	db := openDatabase(ts, args[0])
	defer db.Close()
	var got string
	eventually(ts, func() bool {
		ts.Check(db.QueryRow(qualified(ts, args[1])).Scan(&got))
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

// eventually polls for a condition that another process fulfils.
func eventually(ts *testscript.TestScript, holds func() bool, fail func()) {
	for start := time.Now(); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 30*time.Second {
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

var everyDatabase = map[string]waycli.Driver{"sqlite": sqlite.Driver(), "postgres": postgres.Driver(), "mysql": mysql.Driver()}

// runShop runs the binary of a user, with handlers.
func runShop(bus func(context.Context, *waycli.Service) (*waybill.Bus, error), databases map[string]waycli.Driver) int {
	ctx, stop := waycli.WithSignals(context.Background())
	defer stop()
	app := waycli.App{
		Name:      "shop",
		Databases: databases,
		Brokers:   map[string]waycli.Broker{"amqp": rabbitmq.Broker()},
		Bus:       bus,
	}
	return waycli.Main(ctx, app, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

type orderPlaced struct {
	OrderID string `json:"orderId"`
}

func (orderPlaced) MessageName() string    { return "order.placed" }
func (m orderPlaced) PartitionKey() string { return m.OrderID }

func shopBus(context.Context, *waycli.Service) (*waybill.Bus, error) {
	bus := waybill.NewBus("shop")
	waybill.Handle(bus, "print", func(_ context.Context, m orderPlaced) error {
		_, err := os.Stderr.WriteString("shop handles " + m.OrderID + "\n")
		return errors.Join(err, os.WriteFile("handled-"+m.OrderID, nil, 0o600))
	})
	return bus, nil
}

// orderShipped would silently lose its partition key.
type orderShipped struct {
	OrderID string `json:"orderId"`
}

func (orderShipped) MessageName() string     { return "order.shipped" }
func (m *orderShipped) PartitionKey() string { return m.OrderID }

func badBus(context.Context, *waycli.Service) (*waybill.Bus, error) {
	bus := waybill.NewBus("shop")
	waybill.Handle(bus, "ship", func(context.Context, orderShipped) error { return nil })
	return bus, nil
}

// The commands of consume end with its process, and the child processes of their shells.
func TestNoCommandOutlivesItsProcess(t *testing.T) {
	for _, c := range []struct {
		name    string
		signals []os.Signal
		exit    int
	}{
		// Two different ones: the kernel would make one of two that are equal.
		{"second signal", []os.Signal{syscall.SIGINT, syscall.SIGTERM}, 130},
		{"kill -9", []os.Signal{syscall.SIGKILL}, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			endsWithItsCommands(t, c.signals, c.exit)
		})
	}
}

func endsWithItsCommands(t *testing.T, signals []os.Signal, exit int) {
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
	life := filepath.Join(dir, "life")
	if err := syscall.Mkfifo(life, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := waybill("consume", "work", "--exec", "sleep 60 >life & wait")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	begun, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		child, err := os.Open(life) // waits for the child
		begun <- err
		if err == nil {
			_, err = io.ReadAll(child) // until nobody has it open
		}
		ended <- err
	}()
	select {
	case err := <-begun:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the command did not start")
	}
	for _, s := range signals {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != exit {
		t.Errorf("exit code %d, want %d", got, exit)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the command outlived the process that ran it")
	}
}
