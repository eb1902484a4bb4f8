package waysqlite_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/waytest"
	"github.com/waybill-go/waybill/worker"
)

// order is the message of these tests.
type order struct {
	Key string `json:"key"`
	Seq int    `json:"seq"`
}

func (order) MessageName() string    { return "order.placed" }
func (o order) PartitionKey() string { return o.Key }

// open returns a database of the test's own, with tables.
func open(t testing.TB, cfg waysqlite.Config) *waysqlite.DB {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "waybill.db"), cfg)
}

func openAt(t testing.TB, path string, cfg waysqlite.Config) *waysqlite.DB {
	t.Helper()
	db, err := waysqlite.Open(t.Context(), path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db
}

func newOutbox(t testing.TB, db *waysqlite.DB, cfg outbox.Config) *outbox.Outbox[*sql.Tx] {
	t.Helper()
	out, err := outbox.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func newQueue(t testing.TB, db *waysqlite.DB, name string, cfg waysqlite.QueueConfig) *waysqlite.Queue {
	t.Helper()
	q, err := db.Queue(name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestMessageTravelsFromTransactionToEffect(t *testing.T) {
	orders, broker, billing := open(t, waysqlite.Config{}), open(t, waysqlite.Config{}), open(t, waysqlite.Config{})
	if _, err := billing.SQL().Exec("CREATE TABLE effects (k TEXT, seq INTEGER)"); err != nil {
		t.Fatal(err)
	}
	out := newOutbox(t, orders, outbox.Config{To: "events"})
	const keys, each = 5, 20
	for seq := range each {
		for key := range keys {
			err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
				_, err := tx.Dispatch(ctx, order{string(rune('a' + key)), seq})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	relay, err := outbox.NewRelay(orders, newQueue(t, broker, "events", waysqlite.QueueConfig{}), outbox.RelayConfig{Transport: "events", Drain: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Run(t.Context()); err != nil {
		t.Fatal(err)
	}

	bus := waybill.NewBus("main")
	inbox.Handle(bus, billing, "billing", func(ctx context.Context, tx *sql.Tx, m order) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?, ?)", m.Key, m.Seq)
		return err
	})
	w, err := worker.New(bus, newQueue(t, broker, "events", waysqlite.QueueConfig{}), worker.Config{Transport: "events", Idle: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}

	rows, err := billing.ReadSQL().Query("SELECT k, seq FROM effects ORDER BY rowid")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	next := map[string]int{}
	total := 0
	for rows.Next() {
		var k string
		var seq int
		if err := rows.Scan(&k, &seq); err != nil {
			t.Fatal(err)
		}
		if seq != next[k] {
			t.Errorf("key %s: effect %d came, want %d", k, seq, next[k])
		}
		next[k]++
		total++
	}
	if total != keys*each {
		t.Errorf("%d effects, want %d", total, keys*each)
	}
}

// recorder is a publisher that records each message, unless refuse returns an
// error for it.
type recorder struct {
	waytest.NoTraits
	mu     sync.Mutex
	got    []order
	ids    []waybill.MessageID
	refuse func(rec *waybill.Record) error
}

func (r *recorder) Publish(_ context.Context, items []outbox.Item, results chan<- outbox.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, item := range items {
		var err error
		if r.refuse != nil {
			err = r.refuse(item.Record)
		}
		if err == nil {
			var o order
			_ = waybill.JSON{}.Decode(item.Record.Body, &o)
			r.got = append(r.got, o)
			r.ids = append(r.ids, item.Record.ID)
		}
		results <- outbox.Result{Seq: item.Seq, Err: err}
	}
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got)
}

// run runs a relay until stop.
func run(t *testing.T, relay *outbox.Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
