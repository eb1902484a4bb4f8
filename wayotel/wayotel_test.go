package wayotel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	api "go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayotel"
	"github.com/waybill-go/waybill/worker"
)

const secret = "s3cr3t-canary"

type placed struct {
	ID   string `json:"id"`
	Card string `json:"card"`
}

func (placed) MessageName() string    { return "order.placed" }
func (m placed) PartitionKey() string { return secret + m.ID }

type billed struct {
	ID string `json:"id"`
}

func (billed) MessageName() string { return "invoice.paid" }

// A tracing is an outbox, a relay to a queue and its worker, whose spans it keeps.
type tracing struct {
	t        *testing.T
	spans    *tracetest.InMemoryExporter
	provider *trace.TracerProvider
	db       *memory.DB
	out      *outbox.Outbox[*memory.Tx]
	tracer   *wayotel.Tracer
}

func newTracing(t *testing.T, sampler trace.Sampler) *tracing {
	t.Helper()
	y := &tracing{t: t, spans: tracetest.NewInMemoryExporter(), db: memory.NewDB()}
	y.provider = trace.NewTracerProvider(trace.WithSyncer(y.spans), trace.WithSampler(sampler))
	y.tracer = wayotel.New(y.provider)
	var err error
	y.out, err = outbox.New(y.db, outbox.Config{To: "events", Observer: y.tracer})
	try(t, err)
	return y
}

func (y *tracing) dispatch(ctx context.Context, msg any, stamps ...waybill.Stamp) {
	y.t.Helper()
	try(y.t, y.out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
		_, err := tx.Dispatch(ctx, msg, stamps...)
		return err
	}))
}

// relay publishes all pending messages to a queue of another database.
func (y *tracing) relay(to outbox.Publisher) {
	y.t.Helper()
	r, err := outbox.NewRelay(y.db, to, outbox.RelayConfig{Transport: "events", Drain: true, Observer: y.tracer})
	try(y.t, err)
	try(y.t, r.Run(y.t.Context()))
}

// work handles n messages.
func (y *tracing) work(from waybill.Receiver, bus *waybill.Bus, n int) {
	y.t.Helper()
	w, err := worker.New(bus, from, worker.Config{Transport: "events", Limit: n, Observer: y.tracer, Retry: waybill.Backoff{Delay: time.Millisecond}})
	try(y.t, err)
	try(y.t, w.Run(y.t.Context()))
}

// named returns the spans of a name in order of their end.
func (y *tracing) named(name string) (found tracetest.SpanStubs) {
	for _, s := range y.spans.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

func attribute(s tracetest.SpanStub, key string) any {
	for _, a := range s.Attributes {
		if string(a.Key) == key {
			return a.Value.AsInterface()
		}
	}
	return nil
}

func TestSpansOfARetriedMessageAreOfItsTrace(t *testing.T) {
	y := newTracing(t, trace.AlwaysSample())
	queue := memory.NewDB().Queue("events")
	ctx, request := y.provider.Tracer("shop").Start(t.Context(), "POST /orders")
	y.dispatch(ctx, placed{"o-1", secret}, waybill.Header("tenant", secret))
	request.End()
	y.relay(queue)
	bus, tries := waybill.NewBus("billing"), 0
	waybill.Handle(bus, "bill", func(ctx context.Context, m placed) error {
		if tries++; tries == 1 {
			return errors.New("no such card: " + m.Card)
		}
		y.dispatch(ctx, billed{m.ID})
		return nil
	})
	y.work(queue, bus, 2)

	create, send, process := y.named("create events"), y.named("send events"), y.named("process events")
	if len(create) != 2 || len(send) != 1 || len(process) != 2 {
		t.Fatalf("%d, %d and %d spans create, send and process, want 2, 1 and 2", len(create), len(send), len(process))
	}
	for _, c := range []struct{ child, parent tracetest.SpanStub }{
		{create[0], y.named("POST /orders")[0]}, {send[0], create[0]}, {process[0], create[0]}, {process[1], create[0]}, {create[1], process[1]},
	} {
		if c.child.Parent.SpanID() != c.parent.SpanContext.SpanID() || c.child.SpanContext.TraceID() != c.parent.SpanContext.TraceID() {
			t.Errorf("%s (%s) is not below %s", c.child.Name, attribute(c.child, wayotel.MessageName), c.parent.Name)
		}
	}
	if s := process[0]; s.Status.Code != codes.Error || s.Status.Description != "" || attribute(s, "error.type") != "*errors.errorString" || attribute(s, wayotel.Attempt) != int64(1) {
		t.Errorf("the failed attempt has status %v and attributes %v", s.Status, s.Attributes)
	}
	if s := process[1]; s.Status.Code != codes.Unset || attribute(s, wayotel.Attempt) != int64(2) {
		t.Errorf("the second attempt has status %v and attributes %v", s.Status, s.Attributes)
	}
	if kinds := []api.SpanKind{create[0].SpanKind, send[0].SpanKind, process[0].SpanKind}; fmt.Sprint(kinds) != "[producer client consumer]" {
		t.Errorf("the kinds of create, send and process are %v", kinds)
	}
	if follow := y.db.Pending("events")[0]; follow.Headers["tracestate"] != "" {
		t.Errorf("a follow-up has the tracestate of the message before: %q", follow.Headers["tracestate"])
	}
	for _, s := range y.spans.GetSpans() {
		if text := fmt.Sprintf("%+v", s); strings.Contains(text, secret) {
			t.Errorf("%s has a body, key, header or error in it: %s", s.Name, text)
		}
	}
}

// Three seconds in the outbox, then five at the transport.
func TestDwellIsThatOfOutboxAndQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTracing(t, trace.AlwaysSample())
		id, err := waybill.NewMessageID()
		try(t, err)
		rec := &waybill.Record{ID: id, Name: "order.placed", DispatchedAt: time.Now().Add(-3 * time.Second)}
		y.tracer.Begin(t.Context(), waybill.Dispatched, "events", rec)
		y.tracer.Begin(t.Context(), waybill.Published, "events", rec)
		y.tracer.Observe(t.Context(), waybill.Event{Kind: waybill.Published, Transport: "events", Record: rec})
		if got, _ := attribute(y.named("send events")[0], wayotel.OutboxDwell).(float64); got != 3 {
			t.Errorf("%s is %v, want 3 s", wayotel.OutboxDwell, got)
		}
		time.Sleep(5 * time.Second)
		ctx := y.tracer.Begin(t.Context(), waybill.Handled, "events", rec)
		y.tracer.Observe(ctx, waybill.Event{Kind: waybill.Handled, Transport: "events", Record: rec})
		if got, _ := attribute(y.named("process events")[0], wayotel.QueueDwell).(float64); got != 5 {
			t.Errorf("%s is %v, want 5 s: the time in the outbox is none of it", wayotel.QueueDwell, got)
		}
	})
}

// A delayed message comes to the outbox when it is due.
func TestDelayIsNoDwell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTracing(t, trace.AlwaysSample())
		y.dispatch(t.Context(), placed{"o-1", ""}, waybill.Delay(time.Hour))
		time.Sleep(time.Hour + 3*time.Second)
		y.relay(memory.NewDB().Queue("events"))
		if got, _ := attribute(y.named("send events")[0], wayotel.OutboxDwell).(float64); got != 3 {
			t.Errorf("%s is %v, want 3 s", wayotel.OutboxDwell, got)
		}
	})
}

// The decision of the dispatcher's sampler holds for relay and worker, and costs no header but
// traceparent.
func TestUnsampledMessagesHaveNoSpans(t *testing.T) {
	y := newTracing(t, trace.ParentBased(trace.NeverSample()))
	queue := memory.NewDB().Queue("events")
	y.dispatch(t.Context(), placed{"o-1", ""})
	y.relay(queue)
	if h := queue.Sent()[0].Headers; !strings.HasSuffix(h["traceparent"], "-00") || h["tracestate"] != "" {
		t.Errorf("the headers of an unsampled message are %v", h)
	}
	bus := waybill.NewBus("billing")
	waybill.Handle(bus, "bill", func(context.Context, placed) error { return nil })
	y.work(queue, bus, 1)
	if got := y.spans.GetSpans(); len(got) != 0 {
		t.Errorf("an unsampled message has %d spans", len(got))
	}
}

// What a message of a trace that is not sampled costs: the relay nothing, and the worker the
// context of the handlers.
func TestUnsampledMessagesCostAlmostNothing(t *testing.T) {
	tracer := wayotel.New(trace.NewTracerProvider(trace.WithSampler(trace.ParentBased(trace.AlwaysSample()))))
	rec := &waybill.Record{Name: "order.placed", Headers: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}}
	for _, c := range []struct {
		step waybill.EventKind
		most float64
	}{{waybill.Published, 0}, {waybill.Handled, 3}} {
		got := testing.AllocsPerRun(100, func() {
			ctx := tracer.Begin(t.Context(), c.step, "events", rec)
			tracer.Observe(ctx, waybill.Event{Kind: c.step, Transport: "events", Record: rec})
		})
		if got > c.most {
			t.Errorf("an unsampled message that is %v makes %v allocations, want at most %v", c.step, got, c.most)
		}
	}
}

// The time of publication is a member of the tracestate beside those of others, whose handlers
// see theirs alone.
func TestTracestateKeepsTheMembersOfOthers(t *testing.T) {
	y := newTracing(t, trace.AlwaysSample())
	for _, c := range []struct{ before, want string }{
		{"", ""}, {"a=1", "a=1"}, {"a=1,b=2", "a=1,b=2"}, {"a=1,waybill=x,b=2", "a=1,b=2"}, {"a=1,waybill=x", "a=1"}, {"waybill=x,b=2", "b=2"}, {"waybill=x", ""}, {"notwaybill=x", "notwaybill=x"},
	} {
		rec := &waybill.Record{Headers: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": c.before}}
		y.tracer.Begin(t.Context(), waybill.Published, "events", rec)
		if got := rec.Headers["tracestate"]; !strings.HasPrefix(got, "waybill=") || strings.Contains(got, ",waybill=") || strings.HasPrefix(got, "waybill=x") {
			t.Errorf("the tracestate %q became %q", c.before, got)
		}
		ctx := y.tracer.Begin(t.Context(), waybill.Handled, "events", rec)
		if got := api.SpanContextFromContext(ctx).TraceState().String(); got != c.want {
			t.Errorf("of tracestate %q handlers have %q, want %q", c.before, got, c.want)
		}
	}
	full := strings.TrimSuffix(strings.Repeat("a=1,", 32), ",")
	rec := &waybill.Record{Headers: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": full}}
	y.tracer.Begin(t.Context(), waybill.Published, "events", rec)
	if rec.Headers["tracestate"] != full {
		t.Errorf("a full tracestate became %q", rec.Headers["tracestate"])
	}
}

// A handler passes on the envelope that it was given, with all headers, and no relay publishes it.
func TestPassedOnMessageHasNoTracestateOfItsFormerTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newTracing(t, trace.AlwaysSample())
		rec := &waybill.Record{Name: "order.placed", DispatchedAt: time.Now(), Headers: map[string]string{
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}}
		y.tracer.Begin(t.Context(), waybill.Published, "events", rec)
		time.Sleep(time.Hour)
		ctx, span := y.provider.Tracer("test").Start(t.Context(), "of another trace")
		defer span.End()
		rec.DispatchedAt = time.Now()
		y.tracer.Begin(ctx, waybill.Dispatched, "events", rec)
		if got := rec.Headers["tracestate"]; got != "" {
			t.Errorf("tracestate is %q, want none: it is that of another trace", got)
		}
		ctx = y.tracer.Begin(t.Context(), waybill.Handled, "events", rec)
		y.tracer.Observe(ctx, waybill.Event{Kind: waybill.Handled, Transport: "events", Record: rec})
		if got := attribute(y.named("process events")[0], wayotel.QueueDwell); got != 0.0 {
			t.Errorf("%s is %v, want 0: the former publication was an hour ago", wayotel.QueueDwell, got)
		}
	})
}

// Headers come from strangers, too.
func TestForeignTraceHeadersDoNoHarm(t *testing.T) {
	y := newTracing(t, trace.AlwaysSample())
	for _, parent := range []string{"", "x", strings.Repeat("0", 55), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-zz", "00-00000000000000000000000000000000-b7ad6b7169203331-01"} {
		rec := &waybill.Record{Name: "order.placed", Headers: map[string]string{"traceparent": parent, "tracestate": "a=1,=,waybill=!"}}
		y.tracer.Begin(t.Context(), waybill.Published, "events", rec)
		y.tracer.Observe(t.Context(), waybill.Event{Kind: waybill.Published, Transport: "events", Record: rec})
		ctx := y.tracer.Begin(t.Context(), waybill.Handled, "events", rec)
		y.tracer.Observe(ctx, waybill.Event{Kind: waybill.Handled, Transport: "events", Record: rec})
	}
	if got := y.named("process events"); len(got) != 5 || got[0].Parent.IsValid() {
		t.Errorf("%d spans, want 5, each the first of its trace", len(got))
	}
}

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestBatchesAndGroupsHaveLinksToTheirMessages(t *testing.T) {
	synctest.Test(t, batchesAndGroupsHaveLinksToTheirMessages) // a group's linger is long on any machine
}

func batchesAndGroupsHaveLinksToTheirMessages(t *testing.T) {
	y := newTracing(t, trace.AlwaysSample())
	queue, own := memory.NewDB().Queue("events"), memory.NewDB()
	for i := range 3 {
		y.dispatch(t.Context(), placed{fmt.Sprint(i), ""})
	}
	y.relay(queue)
	bus := waybill.NewBus("billing")
	inbox.Handle(bus, own, "bill", func(context.Context, *memory.Tx, placed) error { return nil }, inbox.Group(3))
	y.work(queue, bus, 3)
	linked := func(batch string, to tracetest.SpanStubs) {
		t.Helper()
		spans := y.named(batch)
		if len(spans) != 1 || len(spans[0].Links) != 3 || attribute(spans[0], "messaging.batch.message_count") != int64(3) {
			t.Fatalf("%s: %v, want one span of 3 messages", batch, spans)
		}
		linked := map[api.SpanID]bool{}
		for _, l := range spans[0].Links {
			linked[l.SpanContext.SpanID()] = true
		}
		for _, s := range to {
			if !linked[s.SpanContext.SpanID()] {
				t.Errorf("%s has no link to %s %s", batch, s.Name, s.SpanContext.SpanID())
			}
		}
	}
	linked("send_batch events", y.named("create events"))
	linked("process_batch events", y.named("process events"))
}
