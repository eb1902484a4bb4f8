package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// snapshot measures claims, and looks at an empty outbox, while a fifth of
// opt.Rows messages pass and an old snapshot keeps the server from removing any
// of them: the last twentieth of the claims against the first.
func snapshot(ctx context.Context, opt Options) ([]Result, error) {
	var claims, polls tally
	var on string
	passing := max(opt.Rows/5, 1)
	for round := range opt.Rounds {
		var took, empty [2][2]float64
		var err error
		if on, took, empty, err = behindSnapshot(ctx, opt, passing); err != nil {
			return nil, fmt.Errorf("round %d: %w", round+1, err)
		}
		claims.add(opt, "claims behind an old snapshot", took)
		polls.add(opt, "empty polls", empty)
	}
	res := Result{Database: on, Keys: opt.Keys, Workers: 1, Ordering: "strict", Rounds: opt.Rounds, Buckets: opt.buckets(), Batch: opt.Batch, Rows: passing}
	claim, poll := res, res
	claim.Case = fmt.Sprintf("claim, %d rows after an old snapshot against the first", passing)
	claims.tell(&claim)
	poll.Case = fmt.Sprintf("empty poll, %d rows after an old snapshot against fresh", passing)
	polls.tell(&poll)
	claim.Growth.MaxFactor, poll.Growth.MaxTo = 1.5, 1
	if opt.MySQL != nil {
		claim.Growth.MaxFactor, poll.Growth.MaxTo = 2, 3
	}
	return []Result{claim, poll}, nil
}

// behindSnapshot is one round. Both sides take turns in one place, which is new.
func behindSnapshot(ctx context.Context, opt Options, passing int) (on string, claims, polls [2][2]float64, err error) {
	p, err := newBackend(ctx, opt)
	if err != nil {
		return "", claims, polls, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	sides := [2]*backlog{{p, opt, outboxTable, 1}, {p, opt, ideal.table, 1}}
	release, err := p.snapshot(ctx)
	if err != nil {
		return "", claims, polls, err
	}
	defer func() { err = errors.Join(err, release()) }()
	if err := emptyPolls(ctx, sides, 0, &polls); err != nil {
		return "", claims, polls, err
	}
	var took [2][]time.Duration
	for passed := 0; passed < passing; passed += opt.batch() {
		for who, b := range sides {
			if err := b.fill(ctx, min(opt.batch(), passing-passed)); err != nil {
				return "", claims, polls, err
			}
			for n := 1; n > 0; { // it may take several claims, as some buckets have more
				var t time.Duration
				if n, t, err = b.claim(ctx); err != nil {
					return "", claims, polls, err
				}
				if n > opt.batch()/4 { // not a remainder, nor the empty claim
					took[who] = append(took[who], t)
				}
			}
		}
	}
	for who := range took {
		part := (len(took[who]) + 19) / 20
		if part == 0 {
			return "", claims, polls, errors.New("too few rows for a claim that fills a batch")
		}
		claims[who] = [2]float64{p50(took[who][:part]), p50(took[who][len(took[who])-part:])}
	}
	return p.database(), claims, polls, emptyPolls(ctx, sides, 1, &polls)
}

// emptyPolls puts the median time of empty claims into polls, as from or to.
func emptyPolls(ctx context.Context, sides [2]*backlog, at int, polls *[2][2]float64) error {
	const looks = 200
	var took [2][]time.Duration
	for range looks {
		for who, b := range sides {
			n, t, err := b.claim(ctx)
			if err == nil && n > 0 {
				err = fmt.Errorf("%d rows are there, and none should be", n)
			}
			if err != nil {
				return err
			}
			took[who] = append(took[who], t)
		}
	}
	for who := range took {
		polls[who][at] = p50(took[who])
	}
	return nil
}
