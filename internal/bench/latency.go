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

// Latency measures the time from a commit to the arrival at a consumer, one message
// at a time, against a client that publishes after its commit (a crash in between
// loses the message), and against bare, which polls. The ratio compares 99th
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
	kinds := p.transactions()
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
		if res, err = compare(ctx, opt, res, relayed, l.published, l.bare); err != nil {
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

// compare measures the sides in rotating order. Ratios compare 99th percentiles.
func compare(ctx context.Context, opt Options, res Result, sides ...func(ctx context.Context) (quantiles, error)) (_ Result, err error) {
	of := make([][]quantiles, len(sides))
	for round := range opt.Rounds {
		for turn := range sides {
			who := (round + turn) % len(sides)
			q, err := sides[who](ctx)
			if err != nil {
				return res, fmt.Errorf("%s, round %d, %s: %w", res.Case, round+1, sideNames[who], err)
			}
			of[who] = append(of[who], q)
		}
		line := fmt.Sprintf("%s, round %d: p50 %.2f, p99 %.2f, slowest %.2f ms", res.Case, round+1, of[0][round].P50, of[0][round].P99, of[0][round].Slowest)
		for who, q := range of[1:] {
			line += fmt.Sprintf(", %s %.2f, %.2f, %.2f", sideNames[who+1], q[round].P50, q[round].P99, q[round].Slowest)
		}
		opt.say("%s", line)
	}
	res.Latency, res.YardstickLatency = medians(of[0]), medians(of[1])
	res.Ratio = res.Latency.P99 / res.YardstickLatency.P99
	if len(sides) > 2 {
		res.BareLatency = medians(of[2])
		res.BareRatio = res.Latency.P99 / res.BareLatency.P99
	}
	return res, nil
}

// quantiles are in milliseconds.
type quantiles struct {
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	// Slowest is the maximum.
	Slowest float64 `json:"slowest_ms"`
	// Drained is the arrival time of the load's last message, in seconds from the
	// start.
	Drained float64 `json:"load_published_s,omitempty"`
	// Pause is the longest gap between two messages of a key, where measured.
	Pause float64 `json:"longest_pause_ms,omitempty"`
}

// medians has the longest pause of all rounds.
func medians(rounds []quantiles) *quantiles {
	var p50, p99, slowest, drained []float64
	pause := 0.0
	for _, q := range rounds {
		p50, p99, pause = append(p50, q.P50), append(p99, q.P99), max(pause, q.Pause)
		slowest, drained = append(slowest, q.Slowest), append(drained, q.Drained)
	}
	return &quantiles{P50: median(p50), P99: median(p99), Slowest: median(slowest), Drained: median(drained), Pause: pause}
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
	go func() { ended <- bare.relays(running, l.place, chs, l.broker.name, pause) }()
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
	wg.Go(func() {
		for left, load := n-l.notMeasured(n), l.load.n; left > 0 || load > 0; {
			select {
			case <-loaded:
				load--
				drained = time.Since(begin)
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
				late = fmt.Errorf("%d of %d messages did not arrive: %w", left+load, n+l.load.n, ctx.Err())
				return
			}
		}
	})
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	var took []float64
	for first := 0; first < n; first += l.burst {
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
			cancel()
			wg.Wait()
			return quantiles{}, err
		}
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

// quantilesOf returns the quantiles of durations in milliseconds, and sorts them.
func quantilesOf(took []float64) quantiles {
	slices.Sort(took)
	n := len(took)
	return quantiles{P50: took[n/2], P99: took[n*99/100], Slowest: took[n-1]}
}
