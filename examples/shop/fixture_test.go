//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/internal/test/testserver/port"
)

// patience is how long anything here may take.
const patience = 2 * time.Minute

// programs are the builds of the shop, by version.
var programs = map[string]string{}

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "waybill-shop-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, version := range []string{"v1", "v2", "v2only"} {
		programs[version] = filepath.Join(dir, version)
		if out, err := exec.Command("go", "build", "-tags", version, "-o", programs[version], ".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build -tags %s: %v\n%s", version, err, out)
			return 1
		}
	}
	return m.Run()
}

// A fixture is a shop on private servers: a database, a virtual host of the broker and a
// warehouse.
type fixture struct {
	t         *testing.T
	database  string
	broker    string
	address   string // of the shop's HTTP server
	db        *pgxpool.Pool
	warehouse *warehouse
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, database: testserver.Postgres(t), broker: testserver.RabbitMQ(t), warehouse: newWarehouse(t)}
	p, err := port.Free()
	f.try(err)
	f.address = fmt.Sprintf("127.0.0.1:%d", p)
	f.db, err = pgxpool.New(t.Context(), f.database)
	f.try(err)
	t.Cleanup(f.db.Close)
	f.run(0, "v1", "schema", "up", "--transports")
	f.exec(schema)
	f.exec("INSERT INTO products SELECT n, 1000000 FROM generate_series(1, 100) AS n")
	return f
}

func (f *fixture) try(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) environment() []string {
	return append(os.Environ(), "WAYBILL_CONFIG=waybill.yaml", "WAYBILL_DATABASE_URL="+f.database, "WAYBILL_BROKER_URL="+f.broker,
		"SHOP_WAREHOUSE_URL="+f.warehouse.url, "SHOP_LISTEN="+f.address)
}

// command returns a command of a build.
func (f *fixture) command(version string, args ...string) *exec.Cmd {
	cmd := exec.Command(programs[version], args...)
	cmd.Env = f.environment()
	return cmd
}

// run runs a command of a build that ends, and returns its standard output.
func (f *fixture) run(exit int, version string, args ...string) string {
	f.t.Helper()
	var out, log bytes.Buffer
	cmd := f.command(version, args...)
	cmd.Stdout, cmd.Stderr = &out, &log
	if _ = cmd.Run(); cmd.ProcessState.ExitCode() != exit {
		f.t.Fatalf("shop %s exits with %d, want %d:\n%s%s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), exit, &out, &log)
	}
	return out.String()
}

// exec runs SQL of the shop.
func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	_, err := f.db.Exec(f.t.Context(), sql, args...)
	f.try(err)
}

// number returns the number that a query selects.
func (f *fixture) number(sql string, args ...any) (n int) {
	f.t.Helper()
	f.try(f.db.QueryRow(f.t.Context(), sql, args...).Scan(&n))
	return n
}

// post posts to the shop, once it listens, and returns the status.
func (f *fixture) post(path string, body any) (status int) {
	f.t.Helper()
	text, err := json.Marshal(body)
	f.try(err)
	f.eventually("the shop listens", func() bool {
		res, err := http.Post("http://"+f.address+path, "application/json", bytes.NewReader(text))
		if err != nil {
			return false
		}
		status = res.StatusCode
		_, _ = io.Copy(io.Discard, res.Body)
		return res.Body.Close() == nil
	})
	return status
}

// accepted is a post that must be accepted.
func (f *fixture) accepted(path string, body any) {
	f.t.Helper()
	if status := f.post(path, body); status != http.StatusAccepted {
		f.t.Fatalf("POST %s: status %d, want %d", path, status, http.StatusAccepted)
	}
}

// eventually polls for an effect of other processes.
func (f *fixture) eventually(want string, holds func() bool) {
	f.t.Helper()
	tick, late := time.NewTicker(20*time.Millisecond), time.After(patience)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			f.t.Fatalf("waited in vain: %s", want)
		}
	}
}

// channel returns a channel to the broker.
func (f *fixture) channel() *amqp.Channel {
	f.t.Helper()
	conn, err := amqp.Dial(f.broker)
	f.try(err)
	f.t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	f.try(err)
	return ch
}

// ready counts the messages of a queue at the broker that no worker has.
func (f *fixture) ready(ch *amqp.Channel, queue string) int {
	f.t.Helper()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	f.try(err)
	return q.Messages
}

// waiting counts the messages in outbox, orders queue and retry queues.
func (f *fixture) waiting() int {
	return f.number("SELECT (SELECT count(*) FROM waybill_outbox WHERE id > 0) + (SELECT count(*) FROM waybill_queue)")
}

// A warehouse answers with how many it has of a product, after a pause. Products from 900 on
// are unknown to it until they are known.
type warehouse struct {
	url   string
	pause atomic.Int64 // nanoseconds
	open  atomic.Int64 // requests
	known sync.Map
}

func newWarehouse(t *testing.T) *warehouse {
	w := &warehouse{}
	server := httptest.NewServer(http.HandlerFunc(func(res http.ResponseWriter, req *http.Request) {
		w.open.Add(1)
		defer w.open.Add(-1)
		var id int
		_, err := fmt.Sscanf(req.URL.Path, "/products/%d", &id)
		if _, known := w.known.Load(id); err != nil || id >= 900 && !known {
			http.NotFound(res, req)
			return
		}
		wait, cancel := context.WithTimeout(req.Context(), time.Duration(w.pause.Load()))
		defer cancel()
		<-wait.Done()
		_, _ = fmt.Fprint(res, 1_000_000)
	}))
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}
