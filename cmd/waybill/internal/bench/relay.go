package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

// A relayCase is rows of one kind, relayed in one ordering.
type relayCase struct {
	name      string
	keys      int // 0 means a different key for each row
	zipf      bool
	pipelined bool
	target    float64
}

var relayCases = []relayCase{
	{name: "strict", keys: 1000, target: 0.90},
	{name: "zipf", keys: 1000, zipf: true, target: 0.70},
	{name: "unique", target: 0.95},
	{name: "ten-keys", keys: 10, target: 0.50},
	{name: "one-key", keys: 1, target: 0.90},
	{name: "pipelined", keys: 1000, pipelined: true, target: 1.00},
	{name: "pipelined-one-key", keys: 1, pipelined: true, target: 0.80},
}

// Relay measures a relay against ideal, or with a single key against a client that
// waits for each confirmation, and against bare. Rows are loaded before each round;
// after it the arrived messages are counted, and their order is checked for the
// sides that keep one. With opt.Keys it has one case, with that many keys.
func Relay(ctx context.Context, opt Options) (_ []Result, err error) {
	p, broker, closeBoth, err := openBoth(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeBoth()) }()
	cases := relayCases
	if opt.Keys > 0 {
		cases = []relayCase{{name: "keys", keys: opt.Keys}}
		opt.Cases = nil
	}
	var results []Result
	for _, c := range cases {
		if !opt.Wants(c.name) {
			continue
		}
		if c.keys == 0 {
			c.keys = opt.Rows
		}
		res, err := relaying{c, p, broker, opt}.measure(ctx)
		if err != nil {
			return nil, err
		}
		results = append(results, res)
	}
	if opt.Keys == 0 && opt.Wants(watchedCase) {
		res, err := watched(ctx, p, broker, opt)
		if err != nil {
			return nil, err
		}
		results = append(results, res)
	}
	for _, c := range failingCases {
		if opt.Keys != 0 || !opt.Wants(c.name) {
			continue
		}
		res, err := failing(ctx, c.name, c.keys, p, broker, opt)
		if err != nil {
			return nil, err
		}
		results = append(results, res)
	}
	return results, nil
}

// relaying is one case on both sides.
type relaying struct {
	relayCase
	backend
	broker *broker
	opt    Options
}

func (r relaying) measure(ctx context.Context) (_ Result, err error) {
	pub, err := wayamqp.NewPublisher(wayamqp.Config{URL: r.opt.Broker, Exchange: r.broker.name})
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, pub.Close()) }()
	cfg := outbox.RelayConfig{Drain: true, Workers: r.opt.Workers, Batch: r.opt.Batch, Window: r.opt.Window, Pipelined: r.pipelined}
	res := Result{Case: "relay, " + r.name, Database: r.database(), Keys: r.keys, Workers: r.opt.Workers, Ordering: "strict",
		Target: r.relayCase.target, Buckets: r.opt.buckets(), Batch: r.opt.Batch, Window: r.opt.Window, Rows: r.opt.Rows}
	if r.pipelined {
		res.Ordering = "pipelined"
	}
	relay, err := outbox.NewRelay(r.store(), pub, cfg)
	if err != nil {
		return Result{}, err
	}
	best := r.yardstick(ideal)
	if r.keys == 1 && !r.pipelined {
		best = r.singly
	}
	return race(ctx, r.opt, res, func(ctx context.Context) (int, time.Duration, error) {
		if err := r.prepare(ctx, outboxTable); err != nil {
			return 0, 0, err
		}
		if err := pub.Connect(ctx); err != nil {
			return 0, 0, err
		}
		return r.timed(ctx, true, func() error { return relay.Run(ctx) })
	}, best, r.yardstick(bare))
}

// prepare loads the rows of one side's round.
func (r relaying) prepare(ctx context.Context, into table) error {
	err := loadAll(ctx, r.backend, rows{first: 1, n: r.opt.Rows, keys: r.keys, zipf: r.zipf}, into)
	runtime.GC() // so that the relay does not collect the garbage of loading
	return err
}

// timed runs one side and then checks the messages that arrived.
func (r relaying) timed(ctx context.Context, ordered bool, run func() error) (int, time.Duration, error) {
	stop := r.opt.clock()
	err := run()
	took := stop()
	if err := errors.Join(err, ctx.Err()); err != nil { // a relay that is stopped returns nil
		return 0, 0, err
	}
	if err := r.broker.arrived(ctx, r.opt.Rows, ordered); err != nil {
		return 0, 0, fmt.Errorf("at the queue: %w", err)
	}
	return r.opt.Rows, took, nil
}

func (r relaying) yardstick(y yardstick) side {
	return func(ctx context.Context) (_ int, _ time.Duration, err error) {
		if err := r.prepare(ctx, y.table); err != nil {
			return 0, 0, err
		}
		chs, closeAll, err := confirming(r.opt.Broker, r.opt.Workers)
		if err != nil {
			return 0, 0, err
		}
		defer func() { err = errors.Join(err, closeAll()) }()
		return r.timed(ctx, false, func() error { return y.relays(ctx, r.backend, chs, r.broker.name, 0) })
	}
}

func (r relaying) singly(ctx context.Context) (_ int, _ time.Duration, err error) {
	chs, closeAll, err := confirming(r.opt.Broker, 1)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	return r.timed(ctx, true, func() error { return oneByOne(ctx, chs[0], r.broker.name, r.opt.Rows) })
}
