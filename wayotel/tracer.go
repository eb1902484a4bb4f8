package wayotel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
)

// name is the instrumentation scope of the spans.
const name = "github.com/waybill-go/waybill/wayotel"

// The attributes of spans that are not of the semantic conventions.
const (
	// OutboxDwell is how long a message was in the outbox, in seconds, from the end of its
	// delay on. A span "send" has it.
	OutboxDwell = "waybill.outbox.dwell"
	// QueueDwell is how long a message was at its transport, in seconds: from the time at
	// which it was published until its handling began, retries included. A span "process" has
	// it; the clocks are those of two processes.
	QueueDwell = "waybill.queue.dwell"
	// MessageName is the name of a message.
	MessageName = "waybill.message.name"
	// Attempt counts the attempts to handle or to publish a message, from 1.
	Attempt = "waybill.attempt"
)

// A Tracer is a waybill.Tracer whose methods may be called concurrently.
type Tracer struct{ tracer trace.Tracer }

var _ waybill.Tracer = (*Tracer)(nil)

// New returns a Tracer whose spans go to provider. Its sampler decides at the beginning of a
// trace: one that is not sampled stays so, and its messages have no spans.
func New(provider trace.TracerProvider) *Tracer { return &Tracer{provider.Tracer(name)} }

// Begin implements waybill.Tracer.
func (t *Tracer) Begin(ctx context.Context, step waybill.EventKind, transport string, rec *waybill.Record) context.Context {
	switch step {
	case waybill.Dispatched:
		t.create(ctx, transport, rec)
	case waybill.Published:
		if sampled(rec) {
			markSent(rec, time.Now())
			return extract(ctx, rec)
		}
	case waybill.Handled:
		return t.process(ctx, transport, rec)
	}
	return ctx
}

// Group implements waybill.Tracer: a span in a separate trace has links to the members.
func (t *Tracer) Group(step waybill.EventKind, transport string, members []context.Context) (end func(error)) {
	operation, kind := "process", trace.SpanKindConsumer
	if step == waybill.Published {
		operation, kind = "send", trace.SpanKindClient
	}
	links := make([]trace.Link, 0, len(members))
	for _, ctx := range members {
		if sc := trace.SpanContextFromContext(ctx); sc.IsSampled() {
			links = append(links, trace.Link{SpanContext: sc})
		}
	}
	if len(links) == 0 {
		return nil
	}
	_, span := t.tracer.Start(context.Background(), operation+"_batch "+transport, trace.WithSpanKind(kind), trace.WithLinks(links...), trace.WithAttributes(
		attribute.String("messaging.system", "waybill"), attribute.String("messaging.operation.name", operation+"_batch"), attribute.String("messaging.operation.type", operation),
		attribute.String("messaging.destination.name", transport), attribute.Int("messaging.batch.message_count", len(members))))
	return func(err error) { finish(span, err) }
}

// Observe implements waybill.Observer.
func (t *Tracer) Observe(ctx context.Context, e waybill.Event) {
	switch e.Kind {
	case waybill.Published, waybill.PublishFailed:
		t.sent(ctx, e)
	case waybill.Handled:
		if span, ok := ctx.Value(spanKey{}).(trace.Span); ok {
			span.SetAttributes(attribute.Int(Attempt, e.Failures+1))
			finish(span, e.Err)
		}
	case waybill.Duplicate:
		if span, ok := ctx.Value(spanKey{}).(trace.Span); ok {
			span.AddEvent("waybill.duplicate", trace.WithAttributes(attribute.String("waybill.handler", e.Handler)))
		}
	}
}

// spanKey is the key of the span "process", which a handler may have covered by its own.
type spanKey struct{}

// create makes the span of a message's creation, and stores its context in rec. A message
// with a traceparent that is dispatched outside of any span continues that trace.
func (t *Tracer) create(ctx context.Context, transport string, rec *waybill.Record) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = extract(ctx, rec)
	}
	if unsampled(ctx) {
		inject(ctx, rec)
		return
	}
	ctx, span := t.tracer.Start(ctx, "create "+transport, trace.WithSpanKind(trace.SpanKindProducer), trace.WithTimestamp(rec.DispatchedAt),
		trace.WithAttributes(attributes("create", transport, rec)...))
	inject(ctx, rec)
	span.End()
}

// sent makes the span of a message that a relay has published, or tried to, in retrospect.
func (t *Tracer) sent(ctx context.Context, e waybill.Event) {
	if e.Record == nil || !sampled(e.Record) {
		return
	}
	begun, ok := sentAt(e.Record)
	if !ok {
		return
	}
	_, span := t.tracer.Start(extract(ctx, e.Record), "send "+e.Transport, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(begun),
		trace.WithAttributes(attributes("send", e.Transport, e.Record)...),
		trace.WithAttributes(attribute.Float64(OutboxDwell, seconds(begun.Sub(e.Record.DispatchedAt)))))
	if e.RoutingKey != "" {
		span.SetAttributes(attribute.String("messaging.rabbitmq.destination.routing_key", e.RoutingKey))
	}
	if e.Kind == waybill.PublishFailed {
		span.SetAttributes(attribute.Int(Attempt, e.Failures))
	}
	finish(span, e.Err)
}

// process begins the span of an attempt to handle a message.
func (t *Tracer) process(ctx context.Context, transport string, rec *waybill.Record) context.Context {
	parent := extract(ctx, rec)
	if unsampled(parent) {
		return parent
	}
	begun := rec.DispatchedAt
	if at, ok := sentAt(rec); ok {
		begun = at
	}
	attrs := attributes("process", transport, rec)
	if !begun.IsZero() {
		attrs = append(attrs, attribute.Float64(QueueDwell, seconds(time.Since(begun))))
	}
	ctx, span := t.tracer.Start(parent, "process "+transport, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attrs...))
	return context.WithValue(ctx, spanKey{}, span)
}

// unsampled reports whether ctx has a trace that is not sampled. Spans of it, which would be
// dropped, cost more than all else.
func unsampled(ctx context.Context) bool {
	sc := trace.SpanContextFromContext(ctx)
	return sc.IsValid() && !sc.IsSampled()
}

func attributes(operation, transport string, rec *waybill.Record) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("messaging.system", "waybill"), attribute.String("messaging.operation.name", operation), attribute.String("messaging.operation.type", operation),
		attribute.String("messaging.destination.name", transport), attribute.String("messaging.message.id", rec.ID.String()), attribute.String(MessageName, rec.Name),
	}
}

// finish ends a span with the class of an error: its text may have parts of a body.
func finish(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, "")
		span.SetAttributes(attribute.String("error.type", class(err)))
	}
	span.End()
}

// seconds is a dwell, which two clocks may make negative.
func seconds(d time.Duration) float64 { return max(d, 0).Seconds() }

// class is the type of the error that a handler returned, or the sentinel of waybill in err.
func class(err error) string {
	for _, known := range []struct {
		err  error
		name string
	}{{waybill.ErrUnavailable, "unavailable"}, {waybill.ErrLeaseLost, "lease_lost"}, {waybill.ErrTransactionLost, "transaction_lost"}, {context.Canceled, "canceled"}, {context.DeadlineExceeded, "timeout"}} {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	var several *waybill.HandlersError
	if errors.As(err, &several) && len(several.Failed) > 0 {
		err = several.Failed[0].Err
	}
	return root(err)
}
