package wayotel

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
)

// w3c reads and writes traceparent and tracestate.
var w3c propagation.TraceContext

// carrier is the headers of a record.
type carrier struct{ *waybill.Record }

// Get implements propagation.TextMapCarrier.
func (c carrier) Get(key string) string { return c.Headers[key] }

// Set implements propagation.TextMapCarrier.
func (c carrier) Set(key, value string) {
	if c.Headers == nil {
		c.Headers = make(map[string]string, 2)
	}
	c.Headers[key] = value
}

// Keys implements propagation.TextMapCarrier.
func (c carrier) Keys() (keys []string) {
	for key := range c.Headers {
		keys = append(keys, key)
	}
	return keys
}

func extract(ctx context.Context, rec *waybill.Record) context.Context {
	return w3c.Extract(ctx, carrier{rec})
}

func inject(ctx context.Context, rec *waybill.Record) { w3c.Inject(ctx, carrier{rec}) }

// The last digit of a traceparent, 00-TRACE-SPAN-FLAGS, has the bit of a sampled trace.
const traceparentBytes, sampledBit = 55, 1

// sampled reports whether the trace of a message is sampled, without parsing all of it.
func sampled(rec *waybill.Record) bool {
	parent := rec.Headers["traceparent"]
	if len(parent) != traceparentBytes {
		return false
	}
	flags, err := strconv.ParseUint(parent[traceparentBytes-2:], 16, 8)
	return err == nil && flags&sampledBit != 0
}

// sentKey is the member of tracestate that has the time at which a relay publishes, in
// microseconds since 1970, by which the dwell at the transport is known.
const sentKey = "waybill"

// markSent stores the time of publication in the tracestate of a sampled message.
func markSent(rec *waybill.Record, now time.Time) {
	state, err := trace.ParseTraceState(rec.Headers["tracestate"])
	if err != nil {
		return
	}
	if state, err = state.Insert(sentKey, strconv.FormatInt(now.UnixMicro(), 36)); err == nil {
		carrier{rec}.Set("tracestate", state.String())
	}
}

// sentAt returns the time that markSent has stored.
func sentAt(parent context.Context) (time.Time, bool) {
	us, err := strconv.ParseInt(trace.SpanContextFromContext(parent).TraceState().Get(sentKey), 36, 64)
	return time.UnixMicro(us), err == nil
}

// withoutSent removes that time, which is no property of what handlers dispatch.
func withoutSent(parent context.Context) context.Context {
	sc := trace.SpanContextFromContext(parent)
	if sc.TraceState().Get(sentKey) == "" {
		return parent
	}
	return trace.ContextWithRemoteSpanContext(parent, sc.WithTraceState(sc.TraceState().Delete(sentKey)))
}

// root is the type of the innermost error.
func root(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return fmt.Sprintf("%T", err)
		}
		err = inner
	}
}
