package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

// pace is the pause between the transactions of latency: 50 a second.
const pace = 20 * time.Millisecond

// Latency measures the time from a commit to the arrival at a consumer, of one
// message at a time, against a client that publishes after its commit and would
// lose the message if it died in between. The ratio is that of the 99th
// percentiles: less is better.
func Latency(ctx context.Context, opt Options) (_ []Result, err error) {
	p, err := newPlace(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	broker, err := openBroker(opt.Broker)
	if err != nil {
		return nil, fmt.Errorf("the broker %w: %w: %w", ErrOpen, waybill.ErrUnavailable, err)
	}
	defer func() { err = errors.Join(err, broker.close()) }()
	kinds, err := p.transactions()
	if err != nil {
		return nil, err
	}
	away, closeAway, err := p.elsewhere(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAway()) }()
	w, err := p.waking(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	cases := []struct {
		name  string
		store outbox.Store
		one   transaction
	}{{"relay in the dispatcher's process", p.store(), kinds[0]}, {"relay of another process, polling", away, kinds[0]}}
	if w.hears != nil {
		cases = append(cases, cases[1])
		cases[2].name, cases[2].store, cases[2].one = "relay of another process, LISTEN", w.hears, w.loud
	}
	var results []Result
	for _, c := range cases {
		l := latency{place: p, broker: broker, opt: opt, one: c.one, every: pace, burst: 1}
		res := Result{Case: "latency, " + c.name, Database: p.database(), Keys: opt.Keys, Workers: opt.Workers, Ordering: "strict", Rounds: opt.Rounds}
		relayed := func(ctx context.Context) (quantiles, error) { return l.relayed(ctx, c.store) }
		if res, err = compare(ctx, opt, res, relayed, l.published); err != nil {
			return nil, err
		}
		results = append(results, res)
	}
	if w.hears != nil {
		res, err := commits(ctx, opt, p, w)
		if err != nil {
			return nil, err
		}
		results = append(results, res)
	}
	return results, nil
}

// compare lets two sides take turns. The ratio is that of the 99th percentiles.
func compare(ctx context.Context, opt Options, res Result, waybill, yardstick func(ctx context.Context) (quantiles, error)) (_ Result, err error) {
	var waybills, yardsticks []quantiles
	for round := range opt.Rounds {
		var of [2]quantiles
		for turn := range 2 {
			who := (round + turn) % 2
			side := waybill
			if who == 1 {
				side = yardstick
			}
			if of[who], err = side(ctx); err != nil {
				return res, fmt.Errorf("%s, round %d: %w", res.Case, round+1, err)
			}
		}
		opt.say("%s, round %d: p50 %.2f, p99 %.2f ms against %.2f, %.2f ms", res.Case, round+1, of[0].P50, of[0].P99, of[1].P50, of[1].P99)
		waybills, yardsticks = append(waybills, of[0]), append(yardsticks, of[1])
	}
	res.Latency, res.YardstickLatency = medians(waybills), medians(yardsticks)
	res.Ratio = res.Latency.P99 / res.YardstickLatency.P99
	return res, nil
}

// quantiles are in milliseconds.
type quantiles struct {
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	// The longest between two messages of a key, where that is measured.
	Pause float64 `json:"longest_pause_ms,omitempty"`
}

// medians has the longest pause of all rounds.
func medians(rounds []quantiles) *quantiles {
	var p50, p99 []float64
	pause := 0.0
	for _, q := range rounds {
		p50, p99, pause = append(p50, q.P50), append(p99, q.P99), max(pause, q.Pause)
	}
	return &quantiles{median(p50), median(p99), pause}
}

// latency is one case on both sides.
type latency struct {
	place
	broker *broker
	opt    Options
	one    transaction
	every  time.Duration // a transaction
	burst  int           // messages in it
	apart  int           // so many keys' messages are not measured
}

// relayed dispatches, and a relay publishes.
func (l latency) relayed(ctx context.Context, store outbox.Store) (_ quantiles, err error) {
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

// published is the yardstick: a transaction, and a publish after it.
func (l latency) published(ctx context.Context) (_ quantiles, err error) {
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

// measure commits at its pace for opt.Slice, and waits for all that it committed.
// A message that is there before its commit was answered counts as 0.
func (l latency) measure(ctx context.Context, commit func(ms []sold) error, publish func(m sold) error) (quantiles, error) {
	if err := l.clear(ctx); err != nil {
		return quantiles{}, err
	}
	n := int(l.opt.Slice/l.every) * l.burst
	committed, arrived := make([]time.Time, n), make([]time.Time, n)
	ctx, cancel := context.WithTimeout(ctx, 4*l.opt.Slice+30*time.Second) // the machine may not keep up with the pace
	defer cancel()
	deliveries, err := l.broker.ch.ConsumeWithContext(ctx, l.broker.name, "latency", true, true, false, false, nil)
	if err != nil {
		return quantiles{}, err
	}
	var wg sync.WaitGroup
	var late error
	wg.Go(func() {
		for left := n - l.notMeasured(n); left > 0; {
			select {
			case d := <-deliveries:
				var m sold
				if late = json.Unmarshal(d.Body, &m); late != nil {
					return
				}
				if !l.isApart(m.Cents) {
					arrived[m.Cents] = time.Now()
					left--
				}
			case <-ctx.Done():
				late = fmt.Errorf("not all of %d messages arrived: %w", n, ctx.Err())
				return
			}
		}
	})
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for first := 0; first < n; first += l.burst {
		<-tick.C
		ms := make([]sold, l.burst)
		for i := range ms {
			ms[i] = sold{keyOf(first+i, l.opt.Keys), first + i, note}
		}
		err := commit(ms)
		now := time.Now()
		for i, m := range ms {
			committed[first+i] = now
			if err == nil && publish != nil {
				err = publish(m)
			}
		}
		if err != nil {
			cancel()
			wg.Wait()
			return quantiles{}, err
		}
	}
	wg.Wait()
	if late == nil {
		late = l.broker.ch.Cancel("latency", false)
	}
	var took []float64
	for i := range n {
		if !arrived[i].IsZero() {
			took = append(took, max(arrived[i].Sub(committed[i]).Seconds()*1000, 0))
		}
	}
	if late != nil {
		return quantiles{}, late
	}
	q := quantilesOf(took)
	if l.apart > 0 {
		q.Pause = longestPause(arrived, l.opt.Keys)
	}
	return q, nil
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

// quantilesOf sorts what took so many milliseconds.
func quantilesOf(took []float64) quantiles {
	slices.Sort(took)
	n := len(took)
	return quantiles{P50: took[n/2], P99: took[n*99/100]}
}
