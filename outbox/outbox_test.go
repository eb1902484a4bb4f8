package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/middleware"
	"github.com/waybill-go/waybill/outbox"
)

var errDeclined = errors.New("declined")

// step is the message of these tests; K and N name it, as in a1.
type step struct {
	K string
	N int
}

func (step) MessageName() string    { return "step.done" }
func (s step) PartitionKey() string { return s.K }

// name returns the K and N of a record.
func name(rec *waybill.Record) string {
	var s step
	if err := (waybill.JSON{}).Decode(rec.Body, &s); err != nil {
		return err.Error()
	}
	return fmt.Sprint(s.K, s.N)
}

func names(recs []*waybill.Record) string {
	var all []string
	for _, rec := range recs {
		all = append(all, name(rec))
	}
	return strings.Join(all, " ")
}

func newOutbox(t testing.TB, db *memory.DB, cfg outbox.Config) *outbox.Outbox[*memory.Tx] {
	t.Helper()
	out, err := outbox.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestMessagesLeaveIfTheTransactionCommits(t *testing.T) {
	db := memory.NewDB()
	out := newOutbox(t, db, outbox.Config{})
	run := func(n int, fail error) error {
		return out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
			if _, err := tx.Dispatch(ctx, step{"a", n}); err != nil {
				return err
			}
			err := tx.Savepoint(ctx, func(ctx context.Context) error {
				_, err := tx.Dispatch(ctx, step{"undone", n})
				return errors.Join(err, errDeclined)
			})
			if !errors.Is(err, errDeclined) {
				t.Errorf("Savepoint = %v, want %v", err, errDeclined)
			}
			if err := out.Savepoint(ctx, tx.SQL(), func(ctx context.Context) error {
				_, err := out.Dispatch(ctx, tx.SQL(), step{"b", n})
				return err
			}); err != nil {
				return err
			}
			return fail
		})
	}
	if err := run(1, nil); err != nil {
		t.Fatal(err)
	}
	if err := run(2, errDeclined); !errors.Is(err, errDeclined) {
		t.Errorf("InTx = %v, want %v", err, errDeclined)
	}
	if got := names(db.Pending("")); got != "a1 b1" {
		t.Errorf("pending %q, want a1 b1", got)
	}
}

func TestDispatchJoinsATransactionOfTheCallersOwn(t *testing.T) {
	db := memory.NewDB()
	out := newOutbox(t, db, outbox.Config{})
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids, err := out.DispatchAll(t.Context(), tx, step{"a", 1}, waybill.NewEnvelope(step{"a", 2}, waybill.Header("tenant", "acme")), step{"a", 3})
	if err != nil {
		t.Fatal(err)
	}
	if got := db.Pending(""); len(got) > 0 {
		t.Errorf("%d pending before the commit, want none", len(got))
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	got := db.Pending("")
	if names(got) != "a1 a2 a3" || got[1].Headers["tenant"] != "acme" {
		t.Errorf("pending %q, want the three in their order", names(got))
	}
	for i, rec := range got {
		if rec.ID != ids[i] {
			t.Errorf("id of message %d is %v, Dispatch returned %v", i, rec.ID, ids[i])
		}
	}
}

func TestDispatchOfSeveralIsAllOrNothing(t *testing.T) {
	db := memory.NewDB()
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
		if _, err := out.DispatchAll(ctx, tx.SQL(), step{"a", 1}, step{"\x00", 2}); err == nil {
			t.Error("DispatchAll with a key that is wrong = nil, want an error")
		}
		return nil
	})
	if got := db.Pending(""); err != nil || len(got) > 0 {
		t.Errorf("error %v, %d pending, want neither", err, len(got))
	}
}

func TestOutboxRoutesByName(t *testing.T) {
	tests := []struct {
		name   string
		cfg    outbox.Config
		stamps []waybill.Stamp
		want   []string // transports, a queue as queue:NAME
		err    string
	}{
		{"nothing configured", outbox.Config{}, nil, []string{"default"}, ""},
		{"one transport", outbox.Config{To: "events"}, nil, []string{"events"}, ""},
		{"route", outbox.Config{To: "events", Routes: waybill.Routes{"step.*": {"steps", "audit"}}}, nil, []string{"steps", "audit"}, ""},
		{"no route, transport", outbox.Config{To: "events", Routes: waybill.Routes{"order.*": {"orders"}}}, nil, []string{"events"}, ""},
		{"no route", outbox.Config{Routes: waybill.Routes{"order.*": {"orders"}}}, nil, nil, "no route for step.done"},
		{"override", outbox.Config{Transports: []string{"other"}}, []waybill.Stamp{waybill.TransportNames{"other"}}, []string{"other"}, ""},
		{"override by what is unknown", outbox.Config{}, []waybill.Stamp{waybill.TransportNames{"other"}}, nil, `unknown transport "other" for `},
		{"override that repeats itself", outbox.Config{Transports: []string{"other"}}, []waybill.Stamp{waybill.TransportNames{"other", "default", "other"}}, nil, `it names transport other twice`},
		{"queue of the database", outbox.Config{To: "jobs", Queues: map[string]string{"jobs": "q"}}, nil, []string{"queue:q"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			db := memory.NewDB()
			out := newOutbox(t, db, tt.cfg)
			err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
				_, err := tx.Dispatch(ctx, step{"a", 1}, tt.stamps...)
				return err
			})
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, transport := range []string{"default", "events", "steps", "audit", "orders", "other", "jobs"} {
				for range db.Pending(transport) {
					got = append(got, transport)
				}
			}
			for range db.Queue("q").Sent() {
				got = append(got, "queue:q")
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("transports (-want +got):\n%s", diff)
			}
		})
	}
	for _, cfg := range []outbox.Config{{Routes: waybill.Routes{"a b": {"x"}}}, {Routes: waybill.Routes{"a": nil}}} {
		if _, err := outbox.New(memory.NewDB(), cfg); err == nil {
			t.Errorf("New(%+v) = nil, want an error", cfg)
		}
	}
}

func TestNamesThatAreNoTransportsAreRefused(t *testing.T) {
	for want, cfg := range map[string]outbox.Config{
		`"events\n" is no name of a transport`:                   {To: "events\n"},
		`"audit\t" is no name of a transport`:                    {Transports: []string{"events", "audit\t"}},
		`"" is no name of a transport`:                           {Transports: []string{""}},
		`"a\x00b" is no name of a transport`:                     {Routes: waybill.Routes{"order.*": {"a\x00b"}}},
		strings.Repeat("x", 191) + `" is no name of a transport`: {To: strings.Repeat("x", 191)},
		`"caf\xe9" is no name of a transport`:                    {Queues: map[string]string{"caf\xe9": "q"}},
		`config: the queue of transport "jobs" has no name`:      {To: "jobs", Queues: map[string]string{"jobs": ""}},
	} {
		if _, err := outbox.New(memory.NewDB(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v) = %v, want an error with %s", cfg, err, want)
		}
	}
	newOutbox(t, memory.NewDB(), outbox.Config{To: strings.Repeat("x", 190), Transports: []string{"Order Events", "café"}})
}

func TestMiddlewareSurroundsADispatch(t *testing.T) {
	db := memory.NewDB()
	var order []string
	wrap := func(name string, do func(next waybill.HandlerFunc, ctx context.Context, env *waybill.Envelope) error) waybill.Middleware {
		return waybill.Middleware{Name: name, Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
			return func(ctx context.Context, env *waybill.Envelope) error {
				order = append(order, name)
				return do(next, ctx, env)
			}
		}}
	}
	stamping := wrap("stamping", func(next waybill.HandlerFunc, ctx context.Context, env *waybill.Envelope) error {
		return next(ctx, env.With(waybill.Header("tenant", "acme")))
	})
	judging := wrap("judging", func(next waybill.HandlerFunc, ctx context.Context, env *waybill.Envelope) error {
		switch env.Message().(step).N {
		case 2:
			return errDeclined
		case 3:
			return nil // swallows it
		case 4:
			ctx = context.Background()
		}
		return next(ctx, env)
	})
	out := newOutbox(t, db, outbox.Config{Middleware: []waybill.Middleware{stamping, judging}})
	dispatch := func(n int) error {
		return out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
			_, err := tx.Dispatch(ctx, step{"a", n})
			return err
		})
	}
	if err := dispatch(1); err != nil {
		t.Fatal(err)
	}
	if err := dispatch(2); !errors.Is(err, errDeclined) {
		t.Errorf("refused by a middleware: %v, want its error", err)
	}
	if err := dispatch(3); err == nil {
		t.Error("swallowed by a middleware: nil, want an error: a message must not vanish")
	}
	if err := dispatch(4); err == nil || !strings.Contains(err.Error(), "a middleware passed another context on") {
		t.Errorf("with another context: %v, want an error that says so", err)
	}
	got := db.Pending("")
	if names(got) != "a1" || got[0].Headers["tenant"] != "acme" {
		t.Errorf("pending %q with headers %v, want a1 with the header of the middleware", names(got), got[0].Headers)
	}
	if want := []string{"stamping", "judging"}; !cmp.Equal(order[:2], want) {
		t.Errorf("middleware ran as %v, want %v", order[:2], want)
	}
}

func TestDelayedMessageIsKeptBack(t *testing.T) {
	db := memory.NewDB()
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
		_, err := tx.Dispatch(ctx, step{"a", 1}, waybill.Delay(time.Hour))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if left, err := db.Backlog(t.Context(), outbox.DefaultTransport); err != nil || left != (outbox.Backlog{Delayed: 1}) {
		t.Errorf("Backlog = %+v, %v, want one delayed", left, err)
	}
}

func TestDispatchIsObserved(t *testing.T) {
	var seen events
	out := newOutbox(t, memory.NewDB(), outbox.Config{Routes: waybill.Routes{"*": {"x", "y"}}, Observer: &seen})
	var id waybill.MessageID
	err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[*memory.Tx]) (err error) {
		id, err = tx.Dispatch(ctx, step{"a", 1})
		return err
	})
	want := []waybill.Event{
		{Kind: waybill.Dispatched, ID: id, Name: "step.done", Key: "a", Transport: "x"},
		{Kind: waybill.Dispatched, ID: id, Name: "step.done", Key: "a", Transport: "y"},
	}
	if diff := cmp.Diff(want, seen.all(), cmpopts.IgnoreFields(waybill.Event{}, "Record")); err != nil || diff != "" {
		t.Errorf("error %v, events (-want +got):\n%s", err, diff)
	}
}

// A handler may pass on the envelope that it was given: that is a dispatch like any other.
func TestEnvelopePassedOnIsDispatched(t *testing.T) {
	db := memory.NewDB()
	var asReceived, named int
	count := func(n *int) waybill.Middleware {
		return waybill.Middleware{Name: "count", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
			return func(ctx context.Context, env *waybill.Envelope) error {
				*n++
				return next(ctx, env)
			}
		}}
	}
	out := newOutbox(t, db, outbox.Config{Middleware: []waybill.Middleware{
		middleware.For(middleware.Message("step.done"), count(&named)),
		middleware.For(middleware.Transport("x"), count(&asReceived)),
		middleware.Ordered(),
	}})
	dispatch := func(s step) error {
		env := waybill.NewEnvelope(s, waybill.MessageName("step.begun"), waybill.Received{Transport: "x"}, waybill.Redelivery{Failures: 1}, waybill.HandledBy("mail"))
		return out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
			_, err := tx.Dispatch(ctx, env)
			return err
		})
	}
	if err := dispatch(step{"", 1}); err == nil || !strings.Contains(err.Error(), "no partition key") {
		t.Errorf("a message without a key, passed on: %v, want the refusal of Ordered", err)
	}
	if err := dispatch(step{"a", 1}); err != nil {
		t.Errorf("a message with a key, passed on: %v", err)
	}
	if asReceived != 0 || named != 2 {
		t.Errorf("%d dispatches passed as received and %d under the message's name, want 0 and 2", asReceived, named)
	}
}
