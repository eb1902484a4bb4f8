package waysqlite_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

// receive takes up to max messages at once, or none.
func receive(t testing.TB, q *waysqlite.Queue, max int) []*waybill.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	ds, err := q.Receive(ctx, max)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	return ds
}

func bodies(t testing.TB, ds []*waybill.Delivery) []order {
	t.Helper()
	all := []order{}
	for _, d := range ds {
		var o order
		if err := (waybill.JSON{}).Decode(d.Record.Body, &o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

func wantBodies(t *testing.T, what string, ds []*waybill.Delivery, want ...order) {
	t.Helper()
	if want == nil {
		want = []order{}
	}
	if diff := cmp.Diff(want, bodies(t, ds)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// local sends msgs to the queue "q" of db in one transaction, without a relay.
func local(t testing.TB, db *waysqlite.DB, msgs ...any) {
	t.Helper()
	dispatch(t, db, outbox.Config{To: "q", Queues: map[string]string{"q": "q"}}, msgs...)
}

func TestQueueLendsAKeyToOneReceiverInOrder(t *testing.T) {
	db := open(t, waysqlite.Config{})
	a, b := newQueue(t, db, "q", waysqlite.QueueConfig{}), newQueue(t, db, "q", waysqlite.QueueConfig{})
	local(t, db, order{"x", 0}, order{"y", 0}, order{"x", 1}, order{"", 0}, order{"", 1})
	first := receive(t, a, 1)
	wantBodies(t, "a", first, order{"x", 0})
	second := receive(t, b, 10)
	wantBodies(t, "b, while a has x", second, order{"y", 0}, order{"", 0}, order{"", 1})
	wantBodies(t, "a, while it has x itself", receive(t, a, 10))
	if err := a.Ack(t.Context(), first...); err != nil {
		t.Fatal(err)
	}
	local(t, db, order{"x", 2})
	wantBodies(t, "b, when x is free", receive(t, b, 10), order{"x", 1}, order{"x", 2})
}

func TestQueueRetryHoldsTheKeyBack(t *testing.T) {
	db := open(t, waysqlite.Config{})
	a, b := newQueue(t, db, "q", waysqlite.QueueConfig{}), newQueue(t, db, "q", waysqlite.QueueConfig{})
	local(t, db, order{"x", 0}, order{"x", 1}, order{"", 0})
	ds := receive(t, a, 10)
	wantBodies(t, "a", ds, order{"x", 0}, order{"x", 1}, order{"", 0})
	ds[0].Record.MarkHandled("mail")
	if err := a.Retry(t.Context(), ds[0], 200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := a.Release(t.Context(), ds[1]); err != nil {
		t.Fatal(err)
	}
	for _, q := range []*waysqlite.Queue{a, b} {
		wantBodies(t, "while the head waits", receive(t, q, 10))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	again, err := b.Receive(ctx, 10)
	if err != nil {
		t.Fatal(err)
	}
	wantBodies(t, "when it is due", again, order{"x", 0}, order{"x", 1})
	if again[0].Failures != 1 || again[1].Failures != 0 {
		t.Errorf("failures %d and %d, want 1 and 0: a release counts none", again[0].Failures, again[1].Failures)
	}
	if got := again[0].Record.Headers[waybill.HeaderHandledBy]; got != "mail" {
		t.Errorf("handled by %q, want mail", got)
	}
}

func TestQueueFencesAHolderWhoseLeaseEnded(t *testing.T) {
	db := open(t, waysqlite.Config{})
	a := newQueue(t, db, "q", waysqlite.QueueConfig{Lease: 100 * time.Millisecond})
	b := newQueue(t, db, "q", waysqlite.QueueConfig{})
	local(t, db, order{"x", 0}, order{"x", 1})
	lent := receive(t, a, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	taken, err := b.Receive(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	wantBodies(t, "b after a's lease", taken, order{"x", 0})
	lost, err := a.Renew(t.Context(), lent...)
	if err != nil || len(lost) != 1 {
		t.Errorf("Renew = %v, %v, want the one as lost", lost, err)
	}
	for name, settle := range map[string]func() error{
		"Ack":     func() error { return a.Ack(t.Context(), lent...) },
		"Retry":   func() error { return a.Retry(t.Context(), lent[0], 0) },
		"Release": func() error { return a.Release(t.Context(), lent...) },
	} {
		if err := settle(); !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("%s of a late holder = %v, want ErrLeaseLost", name, err)
		}
	}
	if lost, err := b.Renew(t.Context(), taken...); err != nil || len(lost) != 0 {
		t.Errorf("Renew of the new holder = %v, %v", lost, err)
	}
	if err := b.Ack(t.Context(), taken...); err != nil {
		t.Errorf("Ack of the new holder = %v", err)
	}
	if n := count(t, db, "SELECT count(*) FROM waybill_queue"); n != 1 {
		t.Errorf("%d messages left, want 1", n)
	}
}

// The same receiver may have let a lease end and got the row again: its first
// delivery must not settle the second.
func TestQueueFencesAnOldDeliveryOfTheSameHolder(t *testing.T) {
	db := open(t, waysqlite.Config{})
	q := newQueue(t, db, "q", waysqlite.QueueConfig{Lease: 50 * time.Millisecond})
	local(t, db, order{"x", 0})
	old := receive(t, q, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := q.Receive(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if err := q.Ack(t.Context(), old...); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("Ack of the old delivery = %v, want ErrLeaseLost", err)
	}
}

func TestQueueOfTheSameDatabaseNeedsNoRelay(t *testing.T) {
	db := open(t, waysqlite.Config{})
	local(t, db, order{"x", 0}, waybill.NewEnvelope(order{"x", 1}, waybill.Delay(100*time.Millisecond)))
	if n := count(t, db, "SELECT count(*) FROM waybill_outbox"); n != 0 {
		t.Errorf("%d rows in the outbox", n)
	}
	q := newQueue(t, db, "q", waysqlite.QueueConfig{})
	ds := receive(t, q, 10)
	wantBodies(t, "at once", ds, order{"x", 0})
	if err := q.Ack(t.Context(), ds...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	ds, err := q.Receive(ctx, 10)
	if err != nil {
		t.Fatal(err)
	}
	wantBodies(t, "when due", ds, order{"x", 1})
}

func TestHeadersSurviveTheTables(t *testing.T) {
	from, to := open(t, waysqlite.Config{}), open(t, waysqlite.Config{})
	env := waybill.NewEnvelope(order{"ключ-ä", 1}, waybill.Header("tenant", "acme \"ü\""), waybill.IdempotencyKey("payment-42-v3"), waybill.CorrelationID("c"), waybill.CausationID("d"))
	dispatch(t, from, outbox.Config{}, env)
	q := newQueue(t, to, "q", waysqlite.QueueConfig{})
	drain(t, from, q, outbox.RelayConfig{})
	ds := receive(t, q, 10)
	if len(ds) != 1 {
		t.Fatalf("%d messages, want 1", len(ds))
	}
	rec := ds[0].Record
	want := map[string]string{"tenant": "acme \"ü\"", waybill.HeaderIdempotencyKey: "payment-42-v3", waybill.HeaderCorrelationID: "c", waybill.HeaderCausationID: "d"}
	if diff := cmp.Diff(want, rec.Headers); diff != "" || rec.Key != "ключ-ä" || rec.ContentType != "application/json" {
		t.Errorf("key %q, type %q, headers (-want +got):\n%s", rec.Key, rec.ContentType, diff)
	}
	if age := time.Since(rec.DispatchedAt); age < 0 || age > time.Minute {
		t.Errorf("dispatched %v ago", age)
	}
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

// A look at a queue reads what is held, not what waits.
func TestClaimOfALongQueueDoesNotScanIt(t *testing.T) {
	db := open(t, waysqlite.Config{Normal: true})
	q := newQueue(t, db, "q", waysqlite.QueueConfig{})
	lend := func() time.Duration {
		start := time.Now()
		for range 20 {
			if ds := receive(t, q, 1); len(ds) != 1 {
				t.Fatalf("%d messages, want 1", len(ds))
			}
		}
		return time.Since(start) / 20
	}
	fill := func(from, to int) {
		var msgs []any
		for i := from; i < to; i++ {
			msgs = append(msgs, order{fmt.Sprint(i), i})
		}
		local(t, db, msgs...)
	}
	fill(0, 100)
	short := lend()
	fill(100, 10_000)
	if long := lend(); long > 5*short+time.Millisecond {
		t.Errorf("lending one message takes %v of 10000 and %v of 100", long, short)
	}
}
