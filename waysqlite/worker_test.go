package waysqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

// flaky loses acknowledgements, so that leases end and messages come again.
type flaky struct {
	*waysqlite.Queue
	lost *atomic.Int64
}

func (f flaky) Ack(ctx context.Context, ds ...*waybill.Delivery) error {
	var kept []*waybill.Delivery
	for _, d := range ds {
		if rand.IntN(20) == 0 {
			f.lost.Add(1)
			continue
		}
		kept = append(kept, d)
	}
	return f.Queue.Ack(ctx, kept...)
}

// Three workers on one queue, handlers that fail, acknowledgements that are
// lost, workers that stop and are replaced: each message has one effect, and
// each key's effects are in order.
func TestWorkersShareAQueueInOrderWithOneEffectEach(t *testing.T) {
	broker, billing := open(t, waysqlite.Config{Normal: true}), open(t, waysqlite.Config{Normal: true})
	if _, err := billing.SQL().Exec("CREATE TABLE effects (k TEXT, seq INTEGER)"); err != nil {
		t.Fatal(err)
	}
	const keys, each = 12, 40
	var msgs []any
	for seq := range each {
		for key := range keys {
			msgs = append(msgs, order{fmt.Sprint(key), seq})
		}
	}
	local(t, broker, msgs...)

	var failures, lost, duplicates atomic.Int64
	bus := waybill.NewBus("main")
	inbox.Handle(bus, billing, "billing", func(ctx context.Context, tx *sql.Tx, m order) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?, ?)", m.Key, m.Seq); err != nil {
			return err
		}
		if rand.IntN(15) == 0 {
			failures.Add(1)
			return errors.New("not now")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	suppressed := observe(func(e waybill.Event) {
		if e.Kind == waybill.Duplicate {
			duplicates.Add(1)
		}
	})
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			for ctx.Err() == nil { // a worker lives for a while, then another takes its place
				q, err := broker.Queue("q", waysqlite.QueueConfig{Lease: 400 * time.Millisecond})
				if err != nil {
					t.Error(err)
					return
				}
				w, err := worker.New(bus, flaky{q, &lost}, worker.Config{Concurrency: 4, Prefetch: 20, Observer: suppressed, Retry: waybill.Backoff{Delay: 5 * time.Millisecond, MaxDelay: 20 * time.Millisecond}})
				if err != nil {
					t.Error(err)
					return
				}
				life, end := context.WithTimeout(ctx, time.Duration(100+rand.IntN(300))*time.Millisecond)
				if err := w.Run(life); err != nil {
					t.Error(err)
				}
				end()
			}
		})
	}
	for ctx.Err() == nil && count(t, broker, "SELECT count(*) FROM waybill_queue") > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	cancel()
	workers.Wait()
	t.Logf("%d failures, %d lost acks, %d duplicates suppressed", failures.Load(), lost.Load(), duplicates.Load())
	if failures.Load() == 0 || lost.Load() == 0 || duplicates.Load() == 0 {
		t.Error("too few faults to prove anything")
	}
	if n := count(t, broker, "SELECT count(*) FROM waybill_queue"); n > 0 {
		t.Fatalf("%d messages were not handled in time", n)
	}
	rows, err := billing.ReadSQL().Query("SELECT k, seq FROM effects ORDER BY rowid")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var effects []order
	for rows.Next() {
		var o order
		if err := rows.Scan(&o.Key, &o.Seq); err != nil {
			t.Fatal(err)
		}
		effects = append(effects, o)
	}
	for key, n := range perKey(t, effects) {
		if n != each {
			t.Errorf("key %s has %d effects, want %d", key, n, each)
		}
	}
}

type observe func(waybill.Event)

func (fn observe) Observe(_ context.Context, e waybill.Event) { fn(e) }
