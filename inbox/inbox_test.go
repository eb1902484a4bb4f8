package inbox_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
)

var errDeclined = errors.New("declined")

type paid struct{ Invoice string }

func (paid) MessageName() string { return "invoice.paid" }

// A fixture is a database with an inbox, a bus, and the effects and events there.
type fixture struct {
	t       testing.TB
	db      *memory.DB
	bus     *waybill.Bus
	effects []string // of handlers that committed
	seen    []waybill.Event
}

func newFixture(t testing.TB) *fixture {
	return &fixture{t: t, db: memory.NewDB(), bus: waybill.NewBus("main")}
}

func (p *fixture) Observe(_ context.Context, e waybill.Event) { p.seen = append(p.seen, e) }

// handle registers a handler with an inbox; its writes are its name and invoice.
func (p *fixture) handle(name string, fn func(ctx context.Context, tx *memory.Tx, m paid) error) {
	inbox.Handle(p.bus, p.db, name, func(ctx context.Context, tx *memory.Tx, m paid) error {
		tx.OnCommit(func() { p.effects = append(p.effects, name+" "+m.Invoice) })
		return fn(ctx, tx, m)
	})
}

func fine(context.Context, *memory.Tx, paid) error { return nil }

func (p *fixture) record(invoice string, stamps ...waybill.Stamp) *waybill.Record {
	p.t.Helper()
	id, err := waybill.NewMessageID()
	if err != nil {
		p.t.Fatal(err)
	}
	rec, err := p.bus.Serializer().Encode(waybill.NewEnvelope(paid{invoice}, append(stamps, id)...))
	if err != nil {
		p.t.Fatal(err)
	}
	return rec
}

func (p *fixture) receive(rec *waybill.Record) error {
	return p.bus.HandleRecord(waybill.WithObserver(p.t.Context(), p), rec, "in", 0)
}

func (p *fixture) wantEffects(want ...string) {
	p.t.Helper()
	if diff := cmp.Diff(want, p.effects); diff != "" {
		p.t.Errorf("effects (-want +got):\n%s", diff)
	}
}

func TestDuplicateIsAcknowledgedAndCounted(t *testing.T) {
	p := newFixture(t)
	p.handle("billing", fine)
	p.handle("mail", fine)
	rec := p.record("i-1", waybill.PartitionKey("k"))
	for range 3 {
		if err := p.receive(rec); err != nil {
			t.Errorf("HandleRecord = %v, want nil, also for a duplicate", err)
		}
	}
	if err := p.receive(p.record("i-1")); err != nil { // another message
		t.Fatal(err)
	}
	p.wantEffects("billing i-1", "mail i-1", "billing i-1", "mail i-1")
	want := waybill.Event{Kind: waybill.Duplicate, ID: rec.ID, Name: "invoice.paid", Key: "k", Transport: "in", Handler: "billing"}
	if len(p.seen) != 4 || !reflect.DeepEqual(p.seen[0], want) {
		t.Errorf("events %+v, want four duplicates, the first %+v", p.seen, want)
	}
}

func TestIdempotencyKeyMakesMessagesDuplicates(t *testing.T) {
	p := newFixture(t)
	p.handle("billing", fine)
	for _, rec := range []*waybill.Record{
		p.record("i-1", waybill.IdempotencyKey("payment-1")),
		p.record("i-2", waybill.IdempotencyKey("payment-1")),
		p.record("i-3", waybill.IdempotencyKey("payment-2")),
		p.record("i-4"),
	} {
		if err := p.receive(rec); err != nil {
			t.Fatal(err)
		}
	}
	p.wantEffects("billing i-1", "billing i-3", "billing i-4")
	// A key that looks like an id is not one.
	first := p.record("i-5")
	if err := p.receive(first); err != nil {
		t.Fatal(err)
	}
	if err := p.receive(p.record("i-6", waybill.IdempotencyKey(first.ID.String()))); err != nil {
		t.Fatal(err)
	}
	p.wantEffects("billing i-1", "billing i-3", "billing i-4", "billing i-5", "billing i-6")
}

func TestHandlersOfOneNameShareTheirInboxRows(t *testing.T) {
	first, second := newFixture(t), newFixture(t)
	second.db = first.db // two services with one database
	first.handle("orders", fine)
	second.handle("orders", fine)
	second.handle("mail", fine)
	rec := first.record("i-1")
	for _, p := range []*fixture{first, second} {
		if err := p.receive(rec); err != nil {
			t.Fatal(err)
		}
	}
	first.wantEffects("orders i-1")
	second.wantEffects("mail i-1")
}

func TestFailedHandlerLeavesNothing(t *testing.T) {
	p := newFixture(t)
	if err := p.db.AddTransports(t.Context(), "events"); err != nil {
		t.Fatal(err)
	}
	out, err := outbox.New(p.db, outbox.Config{To: "events"})
	if err != nil {
		t.Fatal(err)
	}
	outcomes := []func() error{
		func() error { return errDeclined },
		func() error { panic("boom") },
		func() error { return nil },
	}
	runs := 0
	p.handle("billing", func(ctx context.Context, tx *memory.Tx, m paid) error {
		if _, err := out.Dispatch(ctx, tx, m); err != nil {
			return err
		}
		runs++
		return outcomes[runs-1]()
	})
	rec := p.record("i-1")
	entry := inbox.Entry{Handler: "billing", DedupKey: rec.ID.String()}
	for range 2 {
		if err := p.receive(rec); err == nil {
			t.Error("HandleRecord with a failing handler = nil, want an error")
		}
		seen, err := p.db.Contains(t.Context(), entry)
		if err != nil || seen || len(p.effects) > 0 || len(p.db.Pending("events")) > 0 {
			t.Errorf("seen %t, %v, effects %v, %d pending; want nothing", seen, err, p.effects, len(p.db.Pending("events")))
		}
	}
	for range 2 {
		if err := p.receive(rec); err != nil {
			t.Fatal(err)
		}
	}
	p.wantEffects("billing i-1")
	if n := len(p.db.Pending("events")); n != 1 || runs != 3 {
		t.Errorf("%d pending after %d runs, want 1 after 3", n, runs)
	}
}

func TestOneHandlersFailureLeavesTheOthersEffect(t *testing.T) {
	p := newFixture(t)
	fail := true
	p.handle("billing", fine)
	p.handle("mail", func(context.Context, *memory.Tx, paid) error {
		if fail {
			return errDeclined
		}
		return nil
	})
	rec := p.record("i-1")
	if err := p.receive(rec); !errors.Is(err, errDeclined) {
		t.Fatalf("HandleRecord = %v, want %v", err, errDeclined)
	}
	fail = false
	if err := p.receive(rec); err != nil { // without the MarkHandled of a worker
		t.Fatal(err)
	}
	p.wantEffects("billing i-1", "mail i-1")
}

func TestMessageTooOldToProveIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.handle("billing", fine)
		rec := p.record("i-1")
		time.Sleep(p.db.Retention())
		if err := p.receive(rec); err != nil {
			t.Errorf("at the end of the retention: %v, want nil", err)
		}
		old := p.record("i-2")
		time.Sleep(p.db.Retention() + time.Second)
		err := p.receive(old)
		var tooOld *inbox.TooOldError
		if !errors.As(err, &tooOld) || tooOld.ID != old.ID || !waybill.IsUnrecoverable(err) || !strings.Contains(err.Error(), "too old to prove") {
			t.Errorf("after the retention: %v, want an unrecoverable TooOldError", err)
		}
		p.wantEffects("billing i-1")
	})
}

func TestEntryNeedsAnID(t *testing.T) {
	if e, err := inbox.EntryFor("h", waybill.NewEnvelope(paid{}), time.Hour); !waybill.IsUnrecoverable(err) {
		t.Errorf("EntryFor without an id = %v, %v, want an unrecoverable error", e, err)
	}
	id := waybill.MessageID{1}
	longAgo := waybill.DispatchedAt(time.Now().Add(-1000 * time.Hour))
	e, err := inbox.EntryFor("h", waybill.NewEnvelope(paid{}, id, longAgo), 0)
	if want := (inbox.Entry{Handler: "h", DedupKey: id.String(), MessageID: id}); err != nil || e != want {
		t.Errorf("EntryFor without a retention = %+v, %v, want %+v", e, err, want)
	}
}

func TestHandlerInATransactionCannotOpenAnother(t *testing.T) {
	p := newFixture(t)
	p.handle("billing", func(ctx context.Context, _ *memory.Tx, _ paid) error {
		return p.db.InTx(ctx, func(context.Context, *memory.Tx) error { return nil })
	})
	if err := p.receive(p.record("i-1")); !errors.Is(err, waybill.ErrNestedTransaction) {
		t.Errorf("HandleRecord = %v, want %v", err, waybill.ErrNestedTransaction)
	}
}

// A losing database loses the first times transactions at their commit.
type losing struct {
	*memory.DB
	times int
}

func (l *losing) InTx(ctx context.Context, fn func(ctx context.Context, tx *memory.Tx) error) error {
	return l.DB.InTx(ctx, func(ctx context.Context, tx *memory.Tx) error {
		if err := fn(ctx, tx); err != nil {
			return err
		}
		if l.times--; l.times >= 0 {
			return waybill.ErrTransactionLost
		}
		return nil
	})
}

func TestLostTransactionIsNoFailureOfTheMessage(t *testing.T) {
	for _, c := range []struct {
		times, runs int
		fails       bool
	}{{0, 1, false}, {4, 5, false}, {5, 5, true}} {
		p := newFixture(t)
		runs := 0
		inbox.Handle(p.bus, &losing{p.db, c.times}, "billing", func(_ context.Context, tx *memory.Tx, m paid) error {
			runs++
			tx.OnCommit(func() { p.effects = append(p.effects, m.Invoice) })
			return nil
		})
		err := p.receive(p.record("i-1"))
		if runs != c.runs || errors.Is(err, waybill.ErrTransactionLost) != c.fails {
			t.Errorf("lost %d times: %d runs and error %v, want %d runs and an error: %t", c.times, runs, err, c.runs, c.fails)
		}
		if c.fails {
			p.wantEffects()
		} else {
			p.wantEffects("i-1")
		}
	}
}
