package waypg_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/worker"
)

// flaky loses acknowledgements, so that leases end and messages come again.
type flaky struct {
	*waypg.Queue
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
	everywhere(t, func(t *testing.T, at opener) {
		broker, billing := open(t, at, waypg.Config{}), open(t, at, waypg.Config{})
		exec(t, billing, "CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, k text, seq int)")
		const keys, each = 12, 25
		var msgs []any
		for seq := range each {
			for key := range keys {
				msgs = append(msgs, order{fmt.Sprint(key), seq})
			}
		}
		local(t, broker, msgs...)

		var failures, lost, duplicates atomic.Int64
		bus := waybill.NewBus("main")
		inbox.Handle(bus, billing, "billing", func(ctx context.Context, tx pgx.Tx, m order) error {
			if _, err := tx.Exec(ctx, "INSERT INTO effects (k, seq) VALUES ($1, $2)", m.Key, m.Seq); err != nil {
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
					q, err := broker.Queue("q", waypg.QueueConfig{Lease: 400 * time.Millisecond})
					if err != nil {
						t.Error(err)
						return
					}
					w, err := worker.New(bus, flaky{q, &lost}, worker.Config{Concurrency: 4, Prefetch: 20, Observer: suppressed, Retry: waybill.Backoff{Delay: 5 * time.Millisecond, MaxDelay: 20 * time.Millisecond}})
					if err != nil {
						t.Error(err)
						return
					}
					life, end := context.WithTimeout(ctx, time.Duration(200+rand.IntN(300))*time.Millisecond)
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
		for key, n := range perKey(t, effects(t, billing)) {
			if n != each {
				t.Errorf("key %s has %d effects, want %d", key, n, each)
			}
		}
	})
}

type observe func(waybill.Event)

func (fn observe) Observe(_ context.Context, e waybill.Event) { fn(e) }
