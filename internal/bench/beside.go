package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

// writers is how many dispatch beside a relay.
const writers = 8

// pause is the longest that the yardstick's relay waits when it found nothing.
const pause = 5 * time.Millisecond

// besideRelay measures transactions with one message while a relay drains what
// has waited before, against a relay that keeps no order and an insert into its
// table.
func besideRelay(ctx context.Context, p place, opt Options) (_ Result, err error) {
	broker, err := newBroker(opt)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, broker.close()) }()
	pub, err := wayamqp.NewPublisher(wayamqp.Config{URL: opt.Broker, Exchange: broker.name})
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, pub.Close()) }()
	relay, err := outbox.NewRelay(p.store(), pub, outbox.RelayConfig{Workers: opt.Workers, Batch: opt.Batch, Window: opt.Window})
	if err != nil {
		return Result{}, err
	}
	kinds, err := p.transactions()
	if err != nil {
		return Result{}, err
	}
	b := beside{dispatcher{p, opt.Keys, 1, writers, opt.Slice}, broker, opt}
	res := Result{Case: "dispatch, InTx, while a relay drains", Database: p.database(), Keys: opt.Keys, Workers: writers, Ordering: "strict",
		Target: 0.90, Buckets: opt.buckets(), Batch: opt.Batch, Window: opt.Window, Rows: opt.Rows}
	var relayed, yardstick []float64
	res, err = race(ctx, opt, res, func(ctx context.Context) (int, time.Duration, error) {
		return b.turn(ctx, false, &relayed, kinds[0].waybill, relay.Run)
	}, func(ctx context.Context) (_ int, _ time.Duration, err error) {
		chs, closeAll, err := confirming(opt.Broker, opt.Workers)
		if err != nil {
			return 0, 0, err
		}
		defer func() { err = errors.Join(err, closeAll()) }()
		return b.turn(ctx, true, &yardstick, func(ctx context.Context, ms []sold) error { return p.besides(ctx, ms[0]) },
			func(ctx context.Context) error { return idealRelays(ctx, p, chs, broker.name, pause) })
	})
	if err != nil {
		return res, err
	}
	res.Relayed, res.YardstickRelayed = median(relayed[1:]), median(yardstick[1:]) // the first round warms up
	opt.say("%s: %.0f/s were relayed meanwhile, %.0f/s by the yardstick", res.Case, res.Relayed, res.YardstickRelayed)
	return res, nil
}

// beside is the dispatcher of besideRelay.
type beside struct {
	dispatcher
	broker *broker
	opt    Options
}

// turn dispatches for a slice, beginning when the relay has published its first
// message, and adds to relayed how many a second that one published meanwhile.
func (b beside) turn(ctx context.Context, ideal bool, relayed *[]float64, one func(ctx context.Context, ms []sold) error, relay func(ctx context.Context) error) (_ int, _ time.Duration, err error) {
	if err := b.clear(ctx); err != nil {
		return 0, 0, err
	}
	if _, err := b.broker.ch.QueuePurge(b.broker.name, false); err != nil {
		return 0, 0, err
	}
	if err := loadAll(ctx, b.place, rows{first: 1, n: b.opt.Rows, keys: b.keys}, ideal); err != nil {
		return 0, 0, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- relay(running) }()
	defer func() { stop(); err = errors.Join(err, <-ended) }()
	before := 0
	for limit := time.Now().Add(10 * time.Second); before == 0; {
		if time.Now().After(limit) {
			return 0, 0, errors.New("the relay has published nothing for 10 s")
		}
		if before, err = b.broker.waiting(); err != nil {
			return 0, 0, err
		}
	}
	done, took, err := b.run(ctx, one)
	if err != nil {
		return 0, 0, err
	}
	after, err := b.broker.waiting()
	if err != nil {
		return 0, 0, err
	}
	if after == before {
		return 0, 0, fmt.Errorf("the relay has published nothing beside %d transactions", done)
	}
	*relayed = append(*relayed, float64(after-before)/took.Seconds())
	return done, took, nil
}
