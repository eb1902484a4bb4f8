package waysqlite_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

// receive takes up to max messages, of which there are some.
func receive(t testing.TB, q *waysqlite.Queue, max int) []*waybill.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ds, err := q.Receive(ctx, max)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

// local sends msgs to the queue "q" of db in one transaction, without a relay.
func local(t testing.TB, db *waysqlite.DB, msgs ...any) {
	t.Helper()
	dispatch(t, db, outbox.Config{To: "q", Queues: map[string]string{"q": "q"}}, msgs...)
}

// A handler has the writer's only connection: a send that is not part of its
// transaction would wait for it for ever.
func TestSendInsideAUnitOfWorkOfTheSameDatabaseIsRefused(t *testing.T) {
	db := open(t, waysqlite.Config{})
	q := newQueue(t, db, "q", waysqlite.QueueConfig{})
	bus := waybill.NewBus("main")
	bus.AddSender("q", q)
	bus.Route("*", "q")
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, _ waysqlite.Tx) error {
		_, err := bus.Dispatch(ctx, order{"x", 0})
		return err
	})
	if !errors.Is(err, waybill.ErrNestedTransaction) {
		t.Errorf("Dispatch = %v, want ErrNestedTransaction", err)
	}
}

// A claim reads the held rows of a queue, not all the waiting ones.
func TestClaimOfALongQueueDoesNotScanIt(t *testing.T) {
	db := open(t, waysqlite.Config{Normal: true})
	q := newQueue(t, db, "q", waysqlite.QueueConfig{})
	claim := func() time.Duration {
		least := time.Hour
		for range 20 {
			start := time.Now()
			if ds := receive(t, q, 1); len(ds) != 1 {
				t.Fatalf("%d messages, want 1", len(ds))
			}
			least = min(least, time.Since(start))
		}
		return least
	}
	fill := func(from, to int) {
		var msgs []any
		for i := from; i < to; i++ {
			msgs = append(msgs, order{fmt.Sprint(i), i})
		}
		local(t, db, msgs...)
	}
	fill(0, 100)
	short := claim()
	fill(100, 10_000)
	if long := claim(); long > 5*short+time.Millisecond {
		t.Errorf("claiming one message takes %v of 10000 and %v of 100", long, short)
	}
}
