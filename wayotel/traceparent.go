package wayotel

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/waybill-go/waybill"
)

// w3c reads and writes traceparent and tracestate.
var w3c propagation.TraceContext

// carrier is the headers of a record.
type carrier struct{ *waybill.Record }

// Get implements propagation.TextMapCarrier. The time of publication, which is no property of
// follow-ups, is no part of the tracestate.
func (c carrier) Get(key string) string {
	value := c.Headers[key]
	if key == "tracestate" {
		_, value = cutSent(value)
	}
	return value
}

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

// inject stores the trace of ctx in rec, without the tracestate of a former one.
func inject(ctx context.Context, rec *waybill.Record) {
	delete(rec.Headers, "tracestate")
	w3c.Inject(ctx, carrier{rec})
}

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

// maxMembers is how many members a tracestate may have.
const maxMembers = 32

// markSent stores the time of publication in the tracestate of a sampled message, unless that is
// full.
func markSent(rec *waybill.Record, now time.Time) {
	state := sentKey + "=" + strconv.FormatInt(now.UnixMicro(), 36)
	if _, rest := cutSent(rec.Headers["tracestate"]); rest != "" {
		if strings.Count(rest, ",")+1 >= maxMembers {
			return
		}
		state += "," + rest
	}
	carrier{rec}.Set("tracestate", state)
}

// sentAt returns the time that markSent has stored.
func sentAt(rec *waybill.Record) (time.Time, bool) {
	sent, _ := cutSent(rec.Headers["tracestate"])
	us, err := strconv.ParseInt(sent, 36, 64)
	return time.UnixMicro(us), err == nil
}

// cutSent splits a tracestate into the time from markSent and the rest. It parses no more,
// because every sampled message comes by several times.
func cutSent(state string) (sent, rest string) {
	const prefix = sentKey + "="
	before, after := "", state
	if !strings.HasPrefix(state, prefix) {
		i := strings.Index(state, ","+prefix)
		if i < 0 {
			return "", state
		}
		before, after = state[:i], state[i+1:]
	}
	sent, after, more := strings.Cut(after[len(prefix):], ",")
	if before != "" && more {
		before += ","
	}
	return sent, before + after
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
