package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

// latency is one case on both sides.
type latency struct {
	backend
	broker *broker
	opt    Options
	one    transaction
	every  time.Duration // a transaction
	burst  int           // messages in it
	apart  int           // so many keys' messages are not measured
	keys   []string      // nil means opt.Keys keys
	load   load
}

// A load is a number of messages that are published beside the measured ones.
type load struct {
	n       int                             // messages
	prepare func(ctx context.Context) error // runs before the relay starts
	start   func(ctx context.Context) error // runs beside the first message; may be nil
	// commits measures the duration of a commit instead of the time to the arrival.
	commits bool
}

// relayed dispatches, and a relay publishes.
func (l latency) relayed(ctx context.Context, store outbox.Store) (_ quantiles, err error) {
	if err := l.clear(ctx); err != nil {
		return quantiles{}, err
	}
	if l.load.prepare != nil {
		if err := l.load.prepare(ctx); err != nil {
			return quantiles{}, err
		}
	}
	pub, err := wayamqp.NewPublisher(wayamqp.Config{URL: l.opt.Broker, Exchange: l.broker.name, KeyHeader: l.apart > 0})
	if err != nil {
		return quantiles{}, err
	}
	defer func() { err = errors.Join(err, pub.Close()) }()
	relay, err := outbox.NewRelay(store, pub, outbox.RelayConfig{Workers: l.opt.Workers})
	if err != nil {
		return quantiles{}, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(running) }()
	defer func() { stop(); err = errors.Join(err, <-ended) }()
	return l.measure(ctx, func(ms []sold) error { return l.one.waybill(ctx, ms) }, nil)
}

// bare inserts, and the relay of the yardstick bare polls.
func (l latency) bare(ctx context.Context) (_ quantiles, err error) {
	if err := l.clear(ctx); err != nil {
		return quantiles{}, err
	}
	chs, closeAll, err := confirming(l.opt.Broker, l.opt.Workers)
	if err != nil {
		return quantiles{}, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- bare.relays(running, l.backend, chs, l.broker.name, pause) }()
	defer func() { stop(); err = errors.Join(err, <-ended) }()
	return l.measure(ctx, func(ms []sold) error { return l.insert(ctx, bare, ms) }, nil)
}

// published is the yardstick: a transaction, and a publish after it.
func (l latency) published(ctx context.Context) (_ quantiles, err error) {
	if err := l.clear(ctx); err != nil {
		return quantiles{}, err
	}
	conn, err := amqp.Dial(l.opt.Broker)
	if err != nil {
		return quantiles{}, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ch, err := conn.Channel()
	if err != nil {
		return quantiles{}, err
	}
	return l.measure(ctx, func(ms []sold) error { return l.one.plain(ctx, ms) }, func(m sold) error {
		body, err := json.Marshal(m)
		if err != nil {
			return err
		}
		return ch.PublishWithContext(ctx, l.broker.name, m.MessageName(), true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body})
	})
}

// measure commits at its pace for opt.Slice, and waits for every committed message.
// A message that arrives before its commit returns counts as 0.
func (l latency) measure(ctx context.Context, commit func(ms []sold) error, publish func(m sold) error) (quantiles, error) {
	n := int(l.opt.Slice/l.every) * l.burst
	committed, arrived := make([]time.Time, n), make([]time.Time, n)
	limit := 4*l.opt.Slice + 30*time.Second // the machine may not keep up with the pace
	if l.load.n > 0 {
		limit += 10 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	deliveries, err := l.broker.ch.ConsumeWithContext(ctx, l.broker.name, "latency", true, true, false, false, nil)
	if err != nil {
		return quantiles{}, err
	}
	var loaded <-chan amqp.Delivery
	if l.load.n > 0 {
		chs, closeAll, err := confirming(l.opt.Broker, 1)
		if err != nil {
			return quantiles{}, err
		}
		defer func() { _ = closeAll() }()
		if loaded, err = chs[0].ConsumeWithContext(ctx, l.broker.name+"_load", "", true, true, false, false, nil); err != nil {
			return quantiles{}, err
		}
	}
	var wg sync.WaitGroup
	var late, failed error
	var drained time.Duration
	begin := time.Now()
	if l.load.start != nil {
		wg.Go(func() { failed = l.load.start(ctx) })
	}
	wg.Go(func() { drained, late = l.await(ctx, begin, deliveries, loaded, arrived) })
	took, err := l.commitAtPace(committed, commit, publish)
	if err != nil {
		cancel()
		wg.Wait()
		return quantiles{}, err
	}
	wg.Wait()
	if late == nil {
		late = l.broker.ch.Cancel("latency", false)
	}
	for i := range n {
		if !arrived[i].IsZero() && !l.load.commits {
			took = append(took, max(arrived[i].Sub(committed[i]).Seconds()*1000, 0))
		}
	}
	if err := errors.Join(late, failed); err != nil {
		return quantiles{}, err
	}
	q := quantilesOf(took)
	q.Drained = drained.Seconds()
	if l.apart > 0 {
		q.Pause = longestPause(arrived, l.opt.Keys)
	}
	return q, nil
}

// await takes the messages and the load out of their queues, until all have arrived. It
// returns how long after begin the last of the load came.
func (l latency) await(ctx context.Context, begin time.Time, deliveries, loaded <-chan amqp.Delivery, arrived []time.Time) (drained time.Duration, err error) {
	n := len(arrived)
	for left, load := n-l.notMeasured(n), l.load.n; left > 0 || load > 0; {
		select {
		case <-loaded:
			load--
			drained = time.Since(begin)
		case d := <-deliveries:
			var m sold
			if err := json.Unmarshal(d.Body, &m); err != nil {
				return drained, err
			}
			if !l.isApart(m.Cents) {
				arrived[m.Cents] = time.Now()
				left--
			}
		case <-ctx.Done():
			return drained, fmt.Errorf("%d of %d messages did not arrive: %w", left+load, n+l.load.n, ctx.Err())
		}
	}
	return drained, nil
}

// commitAtPace commits a burst of messages at each tick, and notes when. It returns how
// long the commits took where the load is about them.
func (l latency) commitAtPace(committed []time.Time, commit func(ms []sold) error, publish func(m sold) error) (took []float64, err error) {
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for first := 0; first < len(committed); first += l.burst {
		<-tick.C
		ms := make([]sold, l.burst)
		for i := range ms {
			ms[i] = sold{l.keyOf(first + i), first + i, note}
		}
		start := time.Now()
		err := commit(ms)
		now := time.Now()
		if l.load.commits {
			took = append(took, now.Sub(start).Seconds()*1000)
		}
		for i, m := range ms {
			committed[first+i] = now
			if err == nil && publish != nil {
				err = publish(m)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return took, nil
}

// keyOf returns the key of the i-th message.
func (l latency) keyOf(i int) string {
	if l.keys != nil {
		return l.keys[i%len(l.keys)]
	}
	return keyOf(i, l.opt.Keys)
}

// isApart reports whether the i-th message is of a key that is set apart.
func (l latency) isApart(i int) bool { return i%l.opt.Keys < l.apart }

// notMeasured counts the messages of the keys that are set apart.
func (l latency) notMeasured(n int) (of int) {
	for i := range n {
		if l.isApart(i) {
			of++
		}
	}
	return of
}

// longestPause is the longest between the arrivals of two messages of one of the
// keys, in milliseconds.
func longestPause(arrived []time.Time, keys int) (longest float64) {
	last := make([]time.Time, keys)
	for i, at := range arrived {
		if before := last[i%keys]; !before.IsZero() {
			longest = max(longest, at.Sub(before).Seconds()*1000)
		}
		last[i%keys] = at
	}
	return longest
}
