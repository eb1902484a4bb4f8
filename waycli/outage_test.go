package waycli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

// catalogFile has two transports, each with dead letters of its own and default retries.
const catalogFile = `
database: sqlite:///shop.db
transports:
  catalog_sync: { dsn: "queue://catalog_sync", failure_transport: failed_catalog }
  orders_high: { dsn: "queue://orders_high", failure_transport: failed_orders }
`

// A memoryDatabase is a database of the commands in memory, with what consume and stats
// use. Their times are those of a synctest bubble.
type memoryDatabase struct {
	Database
	mem *memory.DB
}

// AddHistory implements history.Store, and keeps nothing.
func (memoryDatabase) AddHistory(context.Context, []history.Row) error { return nil }

func (memoryDatabase) SchemaStatus(context.Context) (admin.SchemaStatus, error) {
	return admin.SchemaStatus{Version: 1, Wanted: 1}, nil
}
func (db memoryDatabase) RetryQueue(transport string) (worker.RetryQueue, error) {
	return db.mem.RetryQueue(transport)
}
func (db memoryDatabase) Queue(dsn config.DSN) (Queue, error) { return db.mem.Queue(dsn.Host), nil }
func (memoryDatabase) ReportWorkers(context.Context, worker.Report) (worker.Instructions, error) {
	return worker.Instructions{}, nil
}
func (memoryDatabase) PruneExpired(context.Context, int) (int, error)           { return 0, nil }
func (memoryDatabase) OutboxStats(context.Context) ([]admin.OutboxStats, error) { return nil, nil }
func (memoryDatabase) QueueStats(context.Context) ([]admin.QueueStats, error)   { return nil, nil }
func (memoryDatabase) InboxStats(context.Context) ([]admin.InboxStats, error)   { return nil, nil }
func (memoryDatabase) Relays(context.Context) ([]admin.Relay, error)            { return nil, nil }
func (memoryDatabase) Workers(context.Context) ([]admin.Worker, error)          { return nil, nil }
func (memoryDatabase) PausedTransports(context.Context) ([]admin.Pause, error)  { return nil, nil }
func (memoryDatabase) Traits() outbox.StoreTraits                               { return outbox.StoreTraits{} }
func (memoryDatabase) Close() error                                             { return nil }
func (db memoryDatabase) WorkerStats(context.Context) (all []admin.WorkerStats, err error) {
	for transport, failures := range map[string]string{"catalog_sync": "failed_catalog", "orders_high": "failed_orders"} {
		all = append(all, admin.WorkerStats{Transport: transport, Retrying: db.mem.Waiting(transport), Failed: len(db.mem.DeadLetters(failures))})
	}
	return all, nil
}

// availability and confirmation are messages without a key, as those of Symfony are.
type availability struct{ SKU string }

func (availability) MessageName() string { return "product.availability" }

type confirmation struct{ Order int }

func (confirmation) MessageName() string { return "order.confirm" }

var errRefused, errLimited, errGone = errors.New("dial tcp: connection refused"), errors.New("429 Too Many Requests"), errors.New("SKU not found")

// A catalog is a shop whose warehouse is down at first, and limits its rate.
type catalog struct {
	t     *testing.T
	start time.Time
	db    memoryDatabase
	bus   *waybill.Bus
	file  string

	mu       sync.Mutex
	handled  map[string]time.Duration // by message: when, since start
	attempts map[string]int
	late     time.Duration // the longest time from the dispatch of a confirmation to its end
	sent     map[int]time.Time
}

func newCatalog(t *testing.T) *catalog {
	c := &catalog{t: t, start: time.Now(), db: memoryDatabase{mem: memory.NewDB()}, bus: waybill.NewBus("shop"), file: filepath.Join(t.TempDir(), "waybill.yaml"),
		handled: map[string]time.Duration{}, attempts: map[string]int{}, sent: map[int]time.Time{}}
	if err := os.WriteFile(c.file, []byte(catalogFile), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{availability{}.MessageName(): "catalog_sync", confirmation{}.MessageName(): "orders_high"} {
		c.bus.AddSender(to, c.db.mem.Queue(to))
		c.bus.Route(name, to)
	}
	waybill.Handle(c.bus, "sync", func(_ context.Context, m availability) error { return c.attempt(m.SKU, c.warehouse(m.SKU)) })
	waybill.Handle(c.bus, "mail", func(_ context.Context, m confirmation) error {
		var err error
		if m.Order == 13 {
			err = waybill.Unrecoverable(errors.New("the order has no customer"))
		}
		c.mu.Lock()
		c.late = max(c.late, time.Since(c.sent[m.Order]))
		c.mu.Unlock()
		return c.attempt(fmt.Sprint("order-", m.Order), err)
	})
	return c
}

// often is how often a message may come again, so that eight retries cover limitedFor.
const downFor, limitedFor, often = time.Minute, 5 * time.Minute, 40 * time.Second

// warehouse is down for 60 s for the SKUs down-*. Those of limited-* exceed its rate for 5
// minutes: it says when to come again, at the end or often.
func (c *catalog) warehouse(sku string) error {
	since, kind := time.Since(c.start), sku[:len(sku)-1]
	switch {
	case kind == "down-" && since < downFor:
		return fmt.Errorf("warehouse: %w", errRefused)
	case kind == "limited-" && since < limitedFor:
		return fmt.Errorf("warehouse: %w", waybill.RetryAfter(errLimited, limitedFor-since))
	case kind == "limited-often-" && since < limitedFor:
		return fmt.Errorf("warehouse: %w", waybill.RetryAfter(errLimited, often))
	case kind == "gone-":
		return fmt.Errorf("warehouse: %w", waybill.Unrecoverable(errGone))
	}
	return nil
}

// attempt counts an attempt with its outcome.
func (c *catalog) attempt(what string, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempts[what]++
	if err == nil {
		if before, twice := c.handled[what]; twice {
			c.t.Errorf("%s was handled twice, after %v and %v", what, before, time.Since(c.start))
		}
		c.handled[what] = time.Since(c.start)
	}
	return err
}

func (c *catalog) dispatch(m any) {
	c.t.Helper()
	if _, err := c.bus.Dispatch(c.t.Context(), m); err != nil {
		c.t.Fatal(err)
	}
}

// command runs a command of the binary.
func (c *catalog) command(ctx context.Context, args ...string) (exit int, stderr string) {
	app := App{
		Databases: map[string]Driver{"sqlite": {Open: func(context.Context, config.DSN, Open) (Database, error) { return c.db, nil }}},
		Bus:       func(context.Context, *Service) (*waybill.Bus, error) { return c.bus, nil },
	}
	var out, log bytes.Buffer
	exit = Main(ctx, app, append(args, "--config", c.file, "--json"), nil, &out, &log)
	return exit, log.String()
}

// wantStats compares the exit code of stats with what a monitor is to see.
func (c *catalog) wantStats(want int, failIf string) {
	c.t.Helper()
	if got, log := c.command(c.t.Context(), "stats", "--fail-if", failIf); got != want {
		c.t.Errorf("after %v: stats --fail-if %q exits with %d, want %d\n%s", time.Since(c.start), failIf, got, want, log)
	}
}

// wantDeadLetters compares the dead letters of a failure transport, each of one attempt.
func (c *catalog) wantDeadLetters(failures string, bodies ...string) {
	c.t.Helper()
	var got []string
	for _, l := range c.db.mem.DeadLetters(failures) {
		got = append(got, string(l.Record.Body))
		if len(l.Attempts) != 1 {
			c.t.Errorf("%s has %s after %d attempts, want one", failures, l.Record.Body, len(l.Attempts))
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, bodies) {
		c.t.Errorf("%s has %q, want %q", failures, got, bodies)
	}
}

// With default retries a dependency that is down for a minute and one that limits its rate
// for five leave no dead letter; a permanent error is one after one attempt, in the failure
// transport of its transport. Neither delays the messages of another transport.
func TestOutagesLeaveNoDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCatalog(t)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			exit, log := c.command(ctx, "consume", "catalog_sync", "orders_high", "--log-level", "error")
			if exit != 0 {
				ended <- fmt.Errorf("consume exits with %d:\n%s", exit, log)
			}
			close(ended)
		}()
		const each, orders = 10, 20 * 60
		for i := range each {
			for _, kind := range []string{"down-", "limited-", "limited-often-"} {
				c.dispatch(availability{fmt.Sprint(kind, i)})
			}
		}
		time.Sleep(time.Second)
		c.wantStats(0, "failed>0")
		c.wantStats(7, "retrying>20")
		c.dispatch(availability{"gone-1"})
		c.dispatch(availability{"gone-2"})
		for n := range orders {
			c.mu.Lock()
			c.sent[n] = time.Now()
			c.mu.Unlock()
			c.dispatch(confirmation{n})
			time.Sleep(time.Second)
			if n == 12 {
				c.wantDeadLetters("failed_orders")
				c.wantDeadLetters("failed_catalog", `{"SKU":"gone-1"}`, `{"SKU":"gone-2"}`)
				c.wantStats(7, "failed>0")
			}
		}
		c.wantDeadLetters("failed_catalog", `{"SKU":"gone-1"}`, `{"SKU":"gone-2"}`)
		c.wantDeadLetters("failed_orders", `{"Order":13}`)
		c.wantDeadLetters("failed")
		c.wantStats(0, "retrying>0")
		c.wantStats(0, "failed>3")
		c.wantStats(7, "failed>=3")
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		c.wantOutcome(each, orders)
	})
}

// wantOutcome compares when messages were handled, and after how many attempts.
func (c *catalog) wantOutcome(each, orders int) {
	c.t.Helper()
	if want := 3*each + orders - 1; len(c.handled) != want {
		c.t.Errorf("%d messages were handled, want %d", len(c.handled), want)
	}
	if c.late > 100*time.Millisecond {
		c.t.Errorf("an order waited %v behind the catalog", c.late)
	}
	for i := range each {
		for kind, want := range map[string]struct {
			attempts int
			by       time.Duration // the next attempt after the outage
		}{
			"down-":          {6, (1 + 3 + 9 + 27 + 81) * time.Second * 11 / 10},
			"limited-":       {2, limitedFor + time.Second},
			"limited-often-": {9, 8*often + time.Second},
		} {
			sku := fmt.Sprint(kind, i)
			if at, ok := c.handled[sku]; !ok || at > want.by || c.attempts[sku] != want.attempts {
				c.t.Errorf("%s was handled after %v and %d attempts (%t), want at most %v, and %d", sku, at, c.attempts[sku], ok, want.by, want.attempts)
			}
		}
	}
	for _, what := range []string{"gone-1", "gone-2", "order-13"} {
		if c.attempts[what] != 1 {
			c.t.Errorf("%s was tried %d times, want once", what, c.attempts[what])
		}
	}
}
