package waybill_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/waybill-go/waybill"
)

// outbound is a sender that keeps its records.
type outbound struct {
	sent []*waybill.Record
	err  error
}

func (o *outbound) Send(_ context.Context, rec *waybill.Record) error {
	if o.err != nil {
		return o.err
	}
	o.sent = append(o.sent, rec)
	return nil
}

func (o *outbound) names() []string {
	var names []string
	for _, rec := range o.sent {
		names = append(names, rec.Name)
	}
	return names
}

// followUp is dispatched by handlers.
type followUp struct{ N int }

func (followUp) MessageName() string { return "follow.up" }

// newBus returns a bus that sends follow-ups to the returned transport.
func newBus(middleware ...waybill.Middleware) (*waybill.Bus, *outbound) {
	b, out := waybill.NewBus("main", middleware...), new(outbound)
	b.AddSender("out", out)
	b.Route("follow.*", "out")
	return b, out
}

// received encodes msg and hands it to the bus as a worker does.
func received(t testing.TB, b *waybill.Bus, msg any, stamps ...waybill.Stamp) error {
	t.Helper()
	rec, err := b.Serializer().Encode(waybill.NewEnvelope(msg, append(stamps, newID(t))...))
	if err != nil {
		t.Fatal(err)
	}
	return b.HandleRecord(t.Context(), rec, "in", 0)
}

// note is a middleware that writes its name when it is entered and left.
func note(name string, to *[]string) waybill.Middleware {
	return waybill.Middleware{Name: name, Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			*to = append(*to, "+"+name)
			defer func() { *to = append(*to, "-"+name) }()
			return next(ctx, env)
		}
	}}
}

func TestMiddlewareRunsInTheOrderGiven(t *testing.T) {
	var got []string
	b, _ := newBus(note("a", &got), note("b", &got))
	waybill.Handle(b, "h", func(context.Context, placed) error { got = append(got, "h"); return nil })
	want := []string{"+a", "+b", "h", "-b", "-a"}
	if err := received(t, b, placed{}); err != nil || !cmp.Equal(got, want) {
		t.Errorf("handling: %v, %v, want %v", got, err, want)
	}
	got = nil
	want = []string{"+a", "+b", "-b", "-a"}
	if _, err := b.Dispatch(t.Context(), followUp{}); err != nil || !cmp.Equal(got, want) {
		t.Errorf("dispatch: %v, %v, want %v", got, err, want)
	}
	if diff := cmp.Diff([]string{"a", "b"}, b.Middleware()); diff != "" {
		t.Errorf("Middleware (-want +got):\n%s", diff)
	}
}

func TestHandlerGetsTheEnvelope(t *testing.T) {
	b, _ := newBus()
	var env *waybill.Envelope
	waybill.Handle(b, "h", func(ctx context.Context, _ placed) error { env = waybill.EnvelopeFrom(ctx); return nil })
	if err := received(t, b, placed{"o-1", 3}, waybill.Header("tenant", "acme")); err != nil {
		t.Fatal(err)
	}
	from, _ := waybill.Last[waybill.Received](env)
	bus, _ := waybill.Last[waybill.BusName](env)
	tenant, _ := env.Header("tenant")
	if from.Transport != "in" || bus != "main" || tenant != "acme" || env.Message() != any(placed{"o-1", 3}) {
		t.Errorf("envelope: from %q, bus %q, tenant %q, message %v", from.Transport, bus, tenant, env.Message())
	}
	if env := waybill.EnvelopeFrom(t.Context()); env != nil {
		t.Errorf("EnvelopeFrom outside a handler = %v, want nil", env)
	}
}

func TestEveryHandlerRunsAndErrorsSayWhose(t *testing.T) {
	b, _ := newBus()
	var ran []string
	handler := func(name string, err error) {
		waybill.Handle(b, name, func(context.Context, placed) error { ran = append(ran, name); return err })
	}
	handler("one", nil)
	handler("two", errBoom)
	handler("three", nil)
	err := received(t, b, placed{})
	if !cmp.Equal(ran, []string{"one", "two", "three"}) {
		t.Errorf("ran %v, want all in order of registration", ran)
	}
	var several *waybill.HandlersError
	if !errors.As(err, &several) || len(several.Failed) != 1 || several.Failed[0].Handler != "two" || !cmp.Equal(several.Succeeded, []string{"one", "three"}) || !errors.Is(err, errBoom) {
		t.Errorf("error = %v, want a HandlersError with two failed handlers and the rest succeeded", err)
	}

	ran = nil
	err = b.Handle(t.Context(), waybill.NewEnvelope(placed{}, newID(t), waybill.MessageName("order.placed"), waybill.Received{Transport: "in"}, waybill.HandledBy("one"), waybill.HandledBy("three")))
	if !cmp.Equal(ran, []string{"two"}) || !errors.Is(err, errBoom) {
		t.Errorf("second attempt ran %v with error %v, want only two", ran, err)
	}
}

func TestPanicIsTheFailureOfItsHandlerAlone(t *testing.T) {
	b, _ := newBus()
	runs := map[string]int{}
	waybill.Handle(b, "one", func(context.Context, placed) error { runs["one"]++; return nil })
	waybill.Handle(b, "two", func(context.Context, placed) error {
		if runs["two"]++; runs["two"] == 1 {
			panic("boom")
		}
		return nil
	})
	rec, err := b.Serializer().Encode(waybill.NewEnvelope(placed{}, newID(t)))
	if err != nil {
		t.Fatal(err)
	}
	err = b.HandleRecord(t.Context(), rec, "in", 0)
	var several *waybill.HandlersError
	var panicked *waybill.PanicError
	if !errors.As(err, &several) || !errors.As(err, &panicked) || panicked.Value != "boom" || !strings.Contains(string(panicked.Stack), "bus_test.go") {
		t.Fatalf("error = %v, want a HandlersError with the panic and its stack", err)
	}
	rec.MarkHandled(several.Succeeded...) // as a worker does before it retries
	if err := b.HandleRecord(t.Context(), rec, "in", 1); err != nil {
		t.Fatal(err)
	}
	if want := map[string]int{"one": 1, "two": 2}; !cmp.Equal(runs, want) {
		t.Errorf("runs = %v, want %v", runs, want)
	}
}

func TestDispatchAfterCurrentBusWaitsForSuccess(t *testing.T) {
	for _, sync := range []bool{false, true} {
		t.Run(fmt.Sprintf("sync %t", sync), func(t *testing.T) {
			b, out := newBus()
			var fail error
			var id waybill.MessageID
			waybill.Handle(b, "h", func(ctx context.Context, _ placed) (err error) {
				if _, err := b.Dispatch(ctx, followUp{1}); err != nil {
					return err
				}
				if id, err = b.Dispatch(ctx, followUp{2}, waybill.DispatchAfterCurrentBus{}); err != nil {
					return err
				}
				if len(out.sent) != 1 {
					t.Errorf("%d sent while the handler runs, want only the first", len(out.sent))
				}
				return fail
			})
			run := func() error {
				out.sent = nil
				if sync {
					_, err := b.Dispatch(t.Context(), placed{})
					return err
				}
				return received(t, b, placed{})
			}
			if err := run(); err != nil || len(out.sent) != 2 || out.sent[1].ID != id {
				t.Errorf("after success: error %v, sent %v, want both, the second with its id", err, out.names())
			}
			fail = errBoom
			if err := run(); !errors.Is(err, errBoom) || len(out.sent) != 1 {
				t.Errorf("after a failure: error %v, sent %v, want the first alone", err, out.names())
			}
		})
	}
	b, out := newBus()
	if _, err := b.Dispatch(t.Context(), followUp{}, waybill.DispatchAfterCurrentBus{}); err != nil || len(out.sent) != 1 {
		t.Errorf("outside a handler: error %v, sent %v, want it sent at once", err, out.names())
	}
}

func TestDerivedIDIsTheSameInEveryRun(t *testing.T) {
	b, out := newBus()
	for _, handler := range []string{"one", "two"} {
		waybill.Handle(b, handler, func(ctx context.Context, _ placed) error {
			for _, label := range []string{"a", "b"} {
				if _, err := b.Dispatch(ctx, followUp{}, waybill.DerivedID(label)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	parent, other := newID(t), newID(t)
	run := func(id waybill.MessageID) []waybill.MessageID {
		out.sent = nil
		rec, err := b.Serializer().Encode(waybill.NewEnvelope(placed{}, id))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.HandleRecord(t.Context(), rec, "in", 0); err != nil {
			t.Fatal(err)
		}
		var ids []waybill.MessageID
		for _, rec := range out.sent {
			ids = append(ids, rec.ID)
		}
		return ids
	}
	first := run(parent)
	if diff := cmp.Diff(first, run(parent)); diff != "" {
		t.Errorf("ids of a second run (-first +second):\n%s", diff)
	}
	all := append(first, run(other)...)
	slices.SortFunc(all, func(a, b waybill.MessageID) int { return slices.Compare(a[:], b[:]) })
	if n := len(slices.Compact(all)); n != 8 {
		t.Errorf("%d different ids of two parents, handlers and labels, want 8", n)
	}
	if _, err := b.Dispatch(t.Context(), followUp{}, waybill.DerivedID("a")); err == nil {
		t.Error("DerivedID outside a handler = nil, want an error")
	}
	own := newID(t)
	if id, err := b.Dispatch(t.Context(), followUp{}, own); err != nil || id != own {
		t.Errorf("Dispatch with an id of the caller's own = %v, %v, want %v", id, err, own)
	}
	if _, err := b.Dispatch(t.Context(), followUp{}, waybill.MessageID{}); err == nil {
		t.Error("Dispatch with the nil id = nil, want an error")
	}
}

func TestRoutesChooseTransports(t *testing.T) {
	b := waybill.NewBus("main")
	a, c := new(outbound), new(outbound)
	b.AddSender("a", a)
	b.AddSender("c", c)
	b.Route("order.*", "a")
	var handled int
	waybill.Handle(b, "h", func(context.Context, followUp) error { handled++; return nil })

	if _, err := b.Dispatch(t.Context(), placed{}); err != nil || len(a.sent) != 1 {
		t.Errorf("routed: error %v, sent %v, want one to a", err, a.names())
	}
	if _, err := b.Dispatch(t.Context(), placed{}, waybill.TransportNames{"a", "c"}); err != nil || len(a.sent) != 2 || len(c.sent) != 1 || a.sent[1].ID != c.sent[0].ID {
		t.Errorf("overridden: error %v, sent %v and %v, want it in both with one id", err, a.names(), c.names())
	}
	if _, err := b.Dispatch(t.Context(), followUp{}); err != nil || handled != 1 {
		t.Errorf("no route: error %v, %d handled, want it handled at once", err, handled)
	}
	if _, err := b.Dispatch(t.Context(), placed{}, waybill.TransportNames{"c", "nowhere"}); err == nil || !strings.Contains(err.Error(), `unknown transport "nowhere": transports: `) || len(c.sent) != 1 {
		t.Errorf("unknown transport: error %v, sent %v, want an error before anything is sent", err, c.names())
	}
	if _, err := b.Dispatch(t.Context(), placed{}, waybill.TransportNames{"c", "a", "c"}); err == nil || !strings.Contains(err.Error(), "names transport c twice") || len(c.sent) != 1 {
		t.Errorf("twice: error %v, sent %v, want an error before anything is sent", err, c.names())
	}
	c.err = errBoom
	id, err := b.Dispatch(t.Context(), placed{}, waybill.TransportNames{"a", "c"})
	if !errors.Is(err, errBoom) || id.IsZero() {
		t.Errorf("transport that fails: %v, %v, want its error and the id", id, err)
	}
	var none *waybill.NoHandlerError
	if _, err := b.Dispatch(t.Context(), unregistered{}); !errors.As(err, &none) {
		t.Errorf("neither route nor handler: %v, want a NoHandlerError", err)
	}
}

func TestSyncHandlerSeesItsMessageAsParent(t *testing.T) {
	b, _ := newBus()
	var parent waybill.MessageID
	waybill.Handle(b, "h", func(ctx context.Context, _ placed) error {
		parent, _ = waybill.Last[waybill.MessageID](waybill.EnvelopeFrom(ctx))
		return nil
	})
	if id, err := b.Dispatch(t.Context(), placed{}); err != nil || id != parent {
		t.Errorf("Dispatch = %v, %v, want the id %v that the handler saw", id, err, parent)
	}
}

func TestRawHandlerGetsTheBytes(t *testing.T) {
	b, _ := newBus()
	var got waybill.RawMessage
	waybill.HandleRaw(b, "exec", "anything", func(_ context.Context, m waybill.RawMessage) error { got = m; return nil })
	sent := waybill.RawMessage{Name: "anything", Key: "k", ContentType: "text/plain", Body: []byte("not JSON")}
	if err := received(t, b, sent); err != nil || !cmp.Equal(got, sent) {
		t.Errorf("handled %+v, %v, want %+v", got, err, sent)
	}
	waybill.HandleRaw(b, "exec", "order.placed", func(context.Context, waybill.RawMessage) error { return nil })
	wantPanic(t, "a Go type for a raw name", "is taken by", handleAny[placed](b))
	b.Types().Alias("order.created", "order.placed")
	wantPanic(t, "a raw handler of an alias", "would get no message: the name is an alias of order.placed", func() {
		waybill.HandleRaw(b, "exec", "order.created", func(context.Context, waybill.RawMessage) error { return nil })
	})

	typed, _ := newBus()
	handleAny[placed](typed)()
	wantPanic(t, "a raw handler for a Go type's name", "would get no message", func() {
		waybill.HandleRaw(typed, "archive", "order.placed", func(context.Context, waybill.RawMessage) error { return nil })
	})
}

func TestDuplicateRegistrationsPanic(t *testing.T) {
	b, _ := newBus()
	handleAny[placed](b)()
	wantPanic(t, "handler name", "registered twice", handleAny[placed](b))
	handleAny[followUp](b)() // another message may have a handler of that name
	wantPanic(t, "transport", "empty or taken", func() { b.AddSender("out", new(outbound)) })
	wantPanic(t, "empty transport", "empty or taken", func() { b.AddSender("", new(outbound)) })
	wantPanic(t, "nil transport", `the sender of transport "other" is nil`, func() { b.AddSender("other", nil) })
	wantPanic(t, "route", "registered twice", func() { b.Route("follow.*", "out") })
	wantPanic(t, "route without transport", "names no transport", func() { b.Route("x") })
	for _, name := range []string{"", "a,b", "a\x00", "caf\xe9", "a\nb", strings.Repeat("n", 191)} {
		wantPanic(t, "handler name "+name, "is no handler name", func() { waybill.Handle(b, name, func(context.Context, placed) error { return nil }) })
	}
}

func TestNilFunctionsPanicAtRegistration(t *testing.T) {
	b, _ := newBus()
	const want = `the function of handler "h" is nil`
	wantPanic(t, "Handle", want, func() { waybill.Handle[placed](b, "h", nil) })
	wantPanic(t, "HandleRaw", want, func() { waybill.HandleRaw(b, "h", "raw", nil) })
	wantPanic(t, "HandleQuery", want, func() { waybill.HandleQuery[placed, int](b, "h", nil) })
	wantPanic(t, "HandleBatch", want, func() { waybill.HandleBatch[placed](b, "h", 2, time.Second, nil) })
	wantPanic(t, "Upcast", "the upcaster of waybill_test.placed is nil", func() { waybill.Upcast[placed, followUp](b, nil) })
	if b.HasHandlers() {
		t.Error("the bus has a handler")
	}
}

// told is an observer that keeps its events.
type told []waybill.Event

func (o *told) Observe(_ context.Context, e waybill.Event) { *o = append(*o, e) }

func TestObserversHearOfWhatIsSent(t *testing.T) {
	b, out := newBus()
	var one, two told
	b.SetObserver(waybill.Observers{&one, &two})
	id, err := b.Dispatch(t.Context(), followUp{}, waybill.PartitionKey("k"))
	if err != nil {
		t.Fatal(err)
	}
	want := told{{Kind: waybill.Dispatched, ID: id, Name: "follow.up", Key: "k", Transport: "out"}}
	if diff := cmp.Diff([]told{want, want}, []told{one, two}, cmpopts.IgnoreFields(waybill.Event{}, "Record")); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	out.err = errBoom
	if _, err := b.Dispatch(t.Context(), followUp{}); err == nil || len(one) != 1 {
		t.Errorf("after a failed send: error %v and %d events, want no further event", err, len(one))
	}
	for kind := waybill.Dispatched; kind <= waybill.LeaseLost; kind++ {
		if kind.String() == "" {
			t.Errorf("kind %d has no words", kind)
		}
	}
}

// printing is a transport that prints its records.
type printing struct{}

func (printing) Send(_ context.Context, rec *waybill.Record) error {
	fmt.Printf("%s key=%s tenant=%s delay=%v %s\n", rec.Name, rec.Key, rec.Headers["tenant"], rec.Delay, rec.Body)
	return nil
}

func ExampleBus_Dispatch() {
	bus := waybill.NewBus("main")
	bus.AddSender("events", printing{})
	bus.Route("order.*", "events")
	_, err := bus.Dispatch(context.Background(), OrderPlaced{"o-7", 4200}, waybill.Delay(5*time.Minute), waybill.Header("tenant", "acme"))
	fmt.Println(err)
	// Output:
	// order.placed key=o-7 tenant=acme delay=5m0s {"orderId":"o-7","cents":4200}
	// <nil>
}

func ExampleHandle() {
	bus := waybill.NewBus("main")
	waybill.Handle(bus, "mail", func(ctx context.Context, m OrderPlaced) error {
		name, _ := waybill.Last[waybill.MessageName](waybill.EnvelopeFrom(ctx))
		fmt.Println("thanks for", m.OrderID, "says", name)
		return nil
	})
	// The message has no route, so it is handled at once.
	_, err := bus.Dispatch(context.Background(), OrderPlaced{"o-7", 4200})
	fmt.Println(err)
	// Output:
	// thanks for o-7 says order.placed
	// <nil>
}
