package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/wayotel"
	"github.com/waybill-go/waybill/wayprom"
	"github.com/waybill-go/waybill/worker"
)

// An observerCase is an observer whose cost is measured.
type observerCase struct {
	name   string
	oneIn  int     // messages of which one is sampled
	target float64 // ratio to no observer
	start  func(db history.Store) (o waybill.Observer, stop func() error, err error)
}

var observers = []observerCase{
	{"prometheus", 100, .98, func(history.Store) (waybill.Observer, func() error, error) {
		m, err := wayprom.New(prometheus.NewRegistry())
		return m, nothing, err
	}},
	{"traces", 100, .98, traces},
	{"history", 100, .99, func(db history.Store) (waybill.Observer, func() error, error) {
		r, err := history.New(db, history.Config{})
		if err != nil {
			return nil, nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		return r, func() error { cancel(); return <-ended }, nil
	}},
	{"logs", 100, .98, func(history.Store) (waybill.Observer, func() error, error) {
		return waybill.LogEvents(slog.New(slog.NewTextHandler(io.Discard, nil)), slog.LevelDebug), nothing, nil
	}},
	{"traces-all", 1, 0, traces},
}

func nothing() error { return nil }

// traces is a tracer whose spans are batched, and then discarded.
func traces(history.Store) (waybill.Observer, func() error, error) {
	provider := sdk.NewTracerProvider(sdk.WithBatcher(tracetest.NewNoopExporter()))
	return wayotel.New(provider), func() error { return provider.Shutdown(context.Background()) }, nil
}

// traceparent is that of a message whose trace begins with it.
func traceparent(id waybill.MessageID, sampled bool) string {
	flags := "00"
	if sampled {
		flags = "01"
	}
	return fmt.Sprintf("00-%x-%x-%s", id[:], id[8:], flags)
}

// Observe measures relays and workers with observers against the same without one. The rates
// of rounds are messages a second of CPU time of this process. Those of a result are of the CPU
// time of the servers, too, where they run on this machine: it bounds what the machine can do.
func Observe(ctx context.Context, opt Options) (_ []Result, err error) {
	if opt.Workers == 0 {
		opt.Workers = 2
	}
	if opt.Meter == nil {
		opt.Meter, _ = NewMeter(opt.DatabaseDSN, opt.BrokerDSN) // nil without servers on this machine
	}
	at, broker, closeBoth, err := openBoth(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeBoth()) }()
	jobs := observing{consumers{inboxBackend: at.(inboxBackend), broker: broker, opt: opt}}
	var results []Result
	for _, c := range observers {
		if !opt.Wants(c.name) {
			continue
		}
		for _, job := range []struct {
			name string
			run  func(ctx context.Context, oneIn int, o waybill.Observer) (time.Duration, error)
		}{{"relay", jobs.relay}, {"inbox", jobs.inbox}} {
			res := Result{Case: job.name + ", " + c.name + ", per second of CPU", Database: at.database(), Keys: opt.Keys, Workers: opt.Workers, Target: c.target, Rows: opt.Rows}
			without := func(ctx context.Context) (int, time.Duration, error) {
				took, err := job.run(ctx, c.oneIn, nil)
				return opt.Rows, took, err
			}
			with := func(ctx context.Context) (int, time.Duration, error) {
				o, stop, err := c.start(at.store().(history.Store))
				if err != nil {
					return 0, 0, err
				}
				took, err := job.run(ctx, c.oneIn, o)
				return opt.Rows, took, errors.Join(err, stop())
			}
			if res, err = race(ctx, opt, res, with, without); err != nil {
				return nil, err
			}
			results = append(results, res.withServers())
		}
	}
	return results, nil
}

// withServers makes rates of the CPU time of this process those of all processes, if theirs is
// known. Observers use none of the servers', but history a statement in 10 s, so that both sides have
// the mean of theirs: it varies by more than an observer's cost.
func (res Result) withServers() Result {
	if res.Budget == nil || res.YardstickBudget == nil {
		return res
	}
	servers := (res.Budget.Database + res.Budget.Broker + res.YardstickBudget.Database + res.YardstickBudget.Broker) / 2e6
	without := 1/res.YardstickRate + servers
	for _, ratio := range []*float64{&res.Ratio, &res.Min, &res.Max} {
		*ratio = without / (1/res.YardstickRate / *ratio + servers)
	}
	res.Rate, res.YardstickRate = 1/(1/res.Rate+servers), 1/without
	return res
}

// observing are the two jobs that are observed.
type observing struct{ consumers }

// relay publishes opt.Rows messages, and returns the CPU time of that.
func (b observing) relay(ctx context.Context, oneIn int, o waybill.Observer) (_ time.Duration, err error) {
	pub, err := wayamqp.NewPublisher(wayamqp.Config{URL: b.opt.Broker, Exchange: b.broker.name})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, pub.Close()) }()
	err = errors.Join(b.clear(ctx), loadAll(ctx, b, rows{first: 1, n: b.opt.Rows, keys: b.opt.Keys}, outboxTable))
	if err := errors.Join(err, b.trace(ctx, oneIn), pub.Connect(ctx)); err != nil {
		return 0, err
	}
	relay, err := outbox.NewRelay(b.store(), pub, outbox.RelayConfig{Drain: true, Workers: b.opt.Workers, Batch: b.opt.Batch, Window: b.opt.Window, Observer: o})
	if err != nil {
		return 0, err
	}
	took, err := b.opt.cpuOf(func() error { return relay.Run(ctx) })
	return took, errors.Join(err, ctx.Err(), b.broker.arrived(ctx, b.opt.Rows, true))
}

// inbox handles opt.Rows messages, and returns the CPU time of that.
func (b observing) inbox(ctx context.Context, oneIn int, o waybill.Observer) (took time.Duration, err error) {
	bus := waybill.NewBus("bench")
	b.handle(bus)
	if err := errors.Join(b.clearInbox(ctx), b.broker.fillTraced(ctx, b.opt.Rows, b.opt.Keys, oneIn)); err != nil {
		return 0, err
	}
	from, err := wayamqp.NewConsumer(wayamqp.Config{URL: b.opt.Broker, Queue: b.broker.name, Prefetch: prefetch})
	if err != nil {
		return 0, err
	}
	w, err := worker.New(bus, from, worker.Config{Transport: "events", Concurrency: 8, Limit: b.opt.Rows, Observer: o})
	if err != nil {
		return 0, errors.Join(err, from.Close())
	}
	took, err = b.opt.cpuOf(func() error { return w.Run(ctx) })
	if err := errors.Join(err, from.Close()); err != nil {
		return 0, err
	}
	all, different, err := b.effects(ctx)
	if err == nil && (all != b.opt.Rows || different != b.opt.Rows) {
		err = fmt.Errorf("%d effects, %d of them different: want %d", all, different, b.opt.Rows)
	}
	return took, errors.Join(err, b.broker.drained())
}

// cpuOf returns the CPU time of this process while run runs. A meter reads all processes'.
func (o Options) cpuOf(run func() error) (time.Duration, error) {
	runtime.GC() // of preparations
	stop := o.clock()
	before, err := cpuTime()
	if err != nil {
		return 0, err
	}
	if err := run(); err != nil {
		return 0, err
	}
	after, err := cpuTime()
	stop()
	return after - before, err
}
