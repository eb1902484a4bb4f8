package demo_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // driver pgx

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cmd/waybill/internal/demo"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waycli/mysql"
	"github.com/waybill-go/waybill/waysqlite"
)

// binary is the command, built once without the race detector: these tests
// are about processes and their memory.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "waybill-process-test-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "waybill")
	if out, err := exec.Command("go", "build", "-o", binary, "../..").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func TestDemoPassesUnderKills(t *testing.T) { passes(t) }

func TestDemoPassesOnPostgresAndRabbitMQ(t *testing.T) {
	t.Parallel() // it starts separate servers
	database := testserver.Postgres(t)
	passes(t, "--database", database, "--broker", testserver.RabbitMQ(t))
	db, err := sql.Open("pgx", database)
	if err != nil {
		t.Fatal(err)
	}
	leftNothing(t, db, "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'demo%'")
}

func TestDemoPassesOnMariaDBAndRabbitMQ(t *testing.T) {
	t.Parallel()
	database := testserver.MariaDB(t)
	passes(t, "--database", database, "--broker", testserver.RabbitMQ(t))
	cfg, err := mysql.Config(config.MustParseDSN(database))
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	leftNothing(t, db, `SELECT (SELECT count(*) FROM information_schema.tables WHERE table_schema = database())
		+ (SELECT count(*) FROM information_schema.routines WHERE routine_schema = database())`)
}

// leftNothing counts the objects left by a demo, and closes db.
func leftNothing(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	defer func() { _ = db.Close() }()
	var left int
	if err := db.QueryRowContext(t.Context(), query).Scan(&left); err != nil || left != 0 {
		t.Errorf("the demo left %d schemas, tables or procedures, %v", left, err)
	}
}

// passes runs the demo, which must be content and must have injected faults.
func passes(t *testing.T, args ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"demo", "--orders", "300", "--seed", "11", "--json"}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Dir = t.TempDir()
	if err := cmd.Run(); err != nil {
		t.Fatalf("demo: %v\n%s%s", err, stdout.String(), stderr.String())
	}
	var v demo.Verdict
	if err := json.Unmarshal(stdout.Bytes(), &v); err != nil {
		t.Fatalf("%v in %s", err, stdout.String())
	}
	t.Logf("%+v", v)
	if !v.OK || !v.Drained || v.Committed != 900 || v.Handled != 900 || v.Lost+v.Phantoms+v.DuplicateEffects+v.OrderViolations != 0 {
		t.Errorf("verdict: %+v", v)
	}
	if v.Kills < 3 || v.DuplicatesSuppressed < 1 || v.RolledBack < 1 || v.LostAcks < 1 || v.HandlerFailures < 1 {
		t.Errorf("too few faults to prove anything: %+v", v)
	}
	left, err := os.ReadDir(cmd.Dir)
	if err != nil || len(left) > 0 {
		t.Errorf("the demo left %v in its working directory, %v", left, err)
	}
}

// deployment is an outbox and a broker in two files, and a configuration of a relay
// between them.
type deployment struct {
	orders, broker *waysqlite.DB
	out            dispatcher
	config         string
}

type dispatcher func(from, n int)

func newDeployment(t *testing.T) *deployment {
	t.Helper()
	dir := t.TempDir()
	open := func(name string) *waysqlite.DB {
		db, err := waysqlite.Open(t.Context(), filepath.Join(dir, name), waysqlite.Config{Normal: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		if _, err := db.SchemaUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		return db
	}
	s := &deployment{orders: open("orders.db"), broker: open("broker.db"), config: filepath.Join(dir, "waybill.yaml")}
	yaml := fmt.Sprintf("database: sqlite://%s\ntransports: { events: { dsn: \"queue://events?database=%s\" } }\n", s.orders.Path(), url.QueryEscape("sqlite://"+s.broker.Path()))
	if err := os.WriteFile(s.config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := outbox.New(s.orders, outbox.Config{To: "events", Serializer: waybill.Serializer{Types: rawTypes()}})
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"text":"` + strings.Repeat("x", 200) + `"}`)
	s.out = func(from, n int) {
		t.Helper()
		err := out.InTx(context.Background(), func(ctx context.Context, tx waysqlite.Tx) error {
			for i := range n {
				if _, err := tx.Dispatch(ctx, waybill.RawMessage{Name: "note.taken", Key: fmt.Sprint((from + i) % 1000), Body: body}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func rawTypes() *waybill.Types {
	types := waybill.NewTypes()
	types.AllowRaw("note.taken")
	return types
}

func (s *deployment) arrived(t *testing.T) int {
	t.Helper()
	queues, err := s.broker.QueueStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, q := range queues {
		n += q.Pending
	}
	return n
}

// await polls until cond holds; the processes it waits for have no other sign.
func await(t *testing.T, what string, cond func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for tick := time.NewTicker(2 * time.Millisecond); !cond(); <-tick.C {
		if time.Since(start) > time.Minute {
			t.Fatalf("waited in vain for %s", what)
		}
	}
	return time.Since(start)
}

func TestStandbyTakesOverFromAKilledRelay(t *testing.T) {
	s := newDeployment(t)
	launch := func(log string) *exec.Cmd {
		file, err := os.Create(log)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		cmd := exec.CommandContext(t.Context(), binary, "relay", "--standby", "--config", s.config)
		cmd.Stderr = file
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	logs := t.TempDir()
	leader := launch(filepath.Join(logs, "leader"))
	s.out(0, 1)
	await(t, "the first relay", func() bool { return s.arrived(t) == 1 })
	for takeover := 1; ; takeover++ { // a busy machine may be slow once
		log := filepath.Join(logs, fmt.Sprint("standby", takeover))
		standby := launch(log)
		await(t, "the second to stand by", func() bool {
			said, err := os.ReadFile(log)
			return err == nil && bytes.Contains(said, []byte("standing by"))
		})
		if err := leader.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = leader.Wait()
		s.out(takeover, 1)
		took := await(t, "the takeover", func() bool { return s.arrived(t) == takeover+1 })
		t.Logf("delivered %v after the kill", took)
		if took < time.Second {
			return
		}
		if takeover == 5 {
			t.Fatalf("the takeover took %v, want less than a second, each time", took)
		}
		leader = standby
	}
}
