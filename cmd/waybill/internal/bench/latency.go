package bench

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

// pace is the pause between the transactions of latency: 50 a second.
const pace = 20 * time.Millisecond

// Latency measures the time from a commit to the arrival at a consumer, one message
// at a time, against a client that publishes after its commit (a crash in between
// loses the message), and against bare, which polls. The ratio compares 99th
// percentiles: less is better.
func Latency(ctx context.Context, opt Options) (_ []Result, err error) {
	p, broker, closeBoth, err := openBoth(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeBoth()) }()
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
		l := latency{backend: p, broker: broker, opt: opt, one: c.one, every: pace, burst: 1}
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
