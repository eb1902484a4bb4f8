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

// pause is the poll interval of a yardstick's relay.
const pause = 5 * time.Millisecond

// besideRelay measures transactions with one message while a relay drains a
// backlog, against inserts into a yardstick's table while the yardstick's relay
// drains it.
func besideRelay(ctx context.Context, p backend, opt Options) (_ Result, err error) {
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
	kinds := p.transactions()
	b := beside{dispatcher{p, opt, 1, writers}, broker}
	res := Result{Case: "dispatch, InTx, while a relay drains", Database: p.database(), Keys: opt.Keys, Workers: writers, Ordering: "strict",
		Target: 0.90, Buckets: opt.buckets(), Batch: opt.Batch, Window: opt.Window, Rows: opt.Rows}
	var relayed [3][]float64
	byHand := func(y yardstick, relayed *[]float64) side {
		return func(ctx context.Context) (_ int, _ time.Duration, err error) {
			chs, closeAll, err := confirming(opt.Broker, opt.Workers)
			if err != nil {
				return 0, 0, err
			}
			defer func() { err = errors.Join(err, closeAll()) }()
			return b.turn(ctx, y.table, relayed, func(ctx context.Context, ms []sold) error { return p.insert(ctx, y, ms) },
				func(ctx context.Context) error { return y.relays(ctx, p, chs, broker.name, pause) })
		}
	}
	res, err = race(ctx, opt, res, func(ctx context.Context) (int, time.Duration, error) {
		return b.turn(ctx, outboxTable, &relayed[0], kinds[0].waybill, relay.Run)
	}, byHand(ideal, &relayed[1]), byHand(bare, &relayed[2]))
	if err != nil {
		return res, err
	}
	res.Relayed, res.YardstickRelayed, res.BareRelayed = median(relayed[0][1:]), median(relayed[1][1:]), median(relayed[2][1:]) // the first round warms up
	opt.say("%s: %.0f/s were relayed meanwhile, %.0f/s by the yardstick, %.0f/s by bare", res.Case, res.Relayed, res.YardstickRelayed, res.BareRelayed)
	return res, nil
}

// beside is the dispatcher of besideRelay.
type beside struct {
	dispatcher
	broker *broker
}

// turn dispatches for a slice, beginning when the relay has published its first
// message, and adds to relayed how many a second that one published meanwhile.
func (b beside) turn(ctx context.Context, from table, relayed *[]float64, one func(ctx context.Context, ms []sold) error, relay func(ctx context.Context) error) (_ int, _ time.Duration, err error) {
	if err := b.clear(ctx); err != nil {
		return 0, 0, err
	}
	if _, err := b.broker.ch.QueuePurge(b.broker.name, false); err != nil {
		return 0, 0, err
	}
	if err := loadAll(ctx, b.backend, rows{first: 1, n: b.opt.Rows, keys: b.opt.Keys}, from); err != nil {
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
