package files

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/middleware"
)

func passThroughs() []benchmark {
	limit := goal{atMost: 20}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil)) // from Info on
	soon := deadline{context.Background(), time.Now().Add(24 * time.Hour)}
	return []benchmark{
		passThrough(context.Background(), "recover", limit, middleware.Recover(), received()),
		passThrough(context.Background(), "log, level info", limit, middleware.Log(quiet), received()),
		passThrough(context.Background(), "log, nil", limit, middleware.Log(nil), received()),
		passThrough(soon, "timeout, sooner deadline set", limit, middleware.Timeout(25*time.Hour), received()),
		passThrough(context.Background(), "timeout, sets a timer", goal{}, middleware.Timeout(time.Hour), received()),
		passThrough(context.Background(), "validate, nothing to check", limit, middleware.Validate(), received()),
		passThrough(context.Background(), "ordered, message with key", limit, middleware.Ordered(), dispatched()),
		passThrough(context.Background(), "correlation, no parent", limit, middleware.Correlation(), dispatched()),
		passThrough(context.Background(), "correlation, handling", limit, middleware.Correlation(), received()),
	}
}

// received is an envelope as a worker gives it to its bus.
func received() *waybill.Envelope {
	return waybill.NewEnvelope(newOrder(0), waybill.MessageID{1}, waybill.MessageName("order.placed"), waybill.DispatchedAt(time.Now()),
		waybill.PartitionKey("ATELI"), waybill.BusName("main"), waybill.Received{Transport: "events"}, waybill.Redelivery{})
}

// dispatched is an envelope as an application gives it to a bus.
func dispatched() *waybill.Envelope {
	return waybill.NewEnvelope(newOrder(0), waybill.MessageID{1}, waybill.BusName("main"))
}

// deadline is a context that ends one day.
type deadline struct {
	context.Context
	at time.Time
}

func (d deadline) Deadline() (time.Time, bool) { return d.at, true }

// Package variables, so that the compiler can neither see through the calls
// nor drop them.
var (
	plain waybill.HandlerFunc = func(context.Context, *waybill.Envelope) error { return nil }
	sink  error
)

// passThrough compares a call through a middleware with one without.
func passThrough(ctx context.Context, name string, goal goal, m waybill.Middleware, env *waybill.Envelope) benchmark {
	wrapped := m.Wrap(plain)
	const calls = 500_000
	return benchmark{"middleware " + name, "none", "call", goal, func(context.Context, string) (*race, error) {
		return &race{
			waybill:   func(context.Context) (int, error) { return repeat(ctx, wrapped, env, calls) },
			yardstick: func(context.Context) (int, error) { return repeat(ctx, plain, env, calls) },
			pairs:     6,
			allocs:    func() float64 { return allocations(1000, func() { sink = wrapped(ctx, env) }) },
		}, nil
	}}
}

// allocations returns how many heap objects a call of f allocates, on average.
func allocations(calls uint64, f func()) float64 {
	var before, after runtime.MemStats
	f() // what is made once
	runtime.ReadMemStats(&before)
	for range calls {
		f()
	}
	runtime.ReadMemStats(&after)
	return float64((after.Mallocs - before.Mallocs) / calls)
}

//go:noinline
func repeat(ctx context.Context, call waybill.HandlerFunc, env *waybill.Envelope, n int) (int, error) {
	for range n {
		sink = call(ctx, env)
	}
	return n, sink
}
