package bench

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// starveCases are loads that must not slow down other messages, with their sizes.
var starveCases = []struct {
	name string
	size int
	run  func(ctx context.Context, opt Options, name string, size int) ([]Result, error)
}{
	{"released-keys", 60_000, releasedKeys},
	{"large-delayed", 1000, largeDelayed},
	{"hot-key", 60_000, hotKey},
	{"waiting-unkeyed", 300_000, waitingUnkeyed},
	{"blocked-keys", 100_000, blockedKeys},
	{"retrying-messages", 10_000, retryingMessages},
	{"retrying-keys", 10, retryingKeys},
}

const (
	loadKeys    = 1_000_000        // the first key of a load; live keys are below
	retryIn     = 30 * time.Minute // longer than a case
	livePace    = 10 * time.Millisecond
	starveRatio = 2   // target: at the most
	claimRatio  = 1.5 // target of claims
)

var errRefused = errors.New("refused by the benchmark")

// Starve measures live messages, idle claims and keyed claims beside a load that
// must not delay them, against the same without the load.
func Starve(ctx context.Context, opt Options) (results []Result, err error) {
	for _, c := range starveCases {
		if !opt.Wants(c.name) {
			continue
		}
		more, err := c.run(ctx, opt, c.name, cmp.Or(opt.Rows, c.size))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		results = append(results, more...)
	}
	return results, nil
}

// releasedKeys releases parked keys while live messages are relayed.
func releasedKeys(ctx context.Context, opt Options, name string, size int) ([]Result, error) {
	return live(ctx, opt, Result{Case: "starve, " + name, MaxRatio: starveRatio}, size, func(b *backlog) (load, []string) {
		prepare := func(ctx context.Context) error {
			return b.refuse(ctx, size, true)
		}
		start := func(ctx context.Context) error {
			released, err := b.store().(admin.Database).Release(ctx, admin.BlockedQuery{})
			if err == nil && released != size {
				err = fmt.Errorf("%d of %d parked keys were released", released, size)
			}
			return err
		}
		return load{n: size, prepare: prepare, start: start}, nil
	})
}

// largeDelayed makes delayed messages of 1 MB due at once, and measures the commits
// of live messages.
func largeDelayed(ctx context.Context, opt Options, name string, size int) ([]Result, error) {
	return live(ctx, opt, Result{Case: "starve, " + name + ", commits", MaxSlowest: 1000}, size, func(b *backlog) (load, []string) {
		prepare := func(ctx context.Context) error {
			random := make([]byte, 750_000) // does not compress
			if _, err := rand.Read(random); err != nil {
				return err
			}
			text := base64.StdEncoding.EncodeToString(random)
			for i := range size {
				if err := b.delay(ctx, []large{{keyOf(i, b.opt.Keys), text}}); err != nil {
					return err
				}
			}
			return nil
		}
		return load{n: size, prepare: prepare, start: b.makeDue, commits: true}, nil
	})
}

// hotKey measures live messages of other keys in the bucket of a key with a
// backlog.
func hotKey(ctx context.Context, opt Options, name string, size int) ([]Result, error) {
	return live(ctx, opt, Result{Case: "starve, " + name, MaxSlowest: 1000}, size, func(b *backlog) (load, []string) {
		var keys []string
		for i := 0; len(keys) < opt.Keys; i++ {
			key := keyOf(i, loadKeys)
			if outbox.Bucket(key, opt.buckets()) == outbox.Bucket(fmt.Sprint("key-", loadKeys), opt.buckets()) {
				keys = append(keys, key)
			}
		}
		prepare := func(ctx context.Context) error {
			return loadAll(ctx, b.backend, rows{first: 1, n: size, keys: 1, firstKey: loadKeys}, outboxTable)
		}
		return load{n: size, prepare: prepare}, keys
	})
}

// live measures live messages with a load and without.
func live(ctx context.Context, opt Options, res Result, size int, with func(b *backlog) (load, []string)) (_ []Result, err error) {
	p, broker, closeBoth, err := openBoth(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeBoth()) }()
	closeQueue, err := broker.loadQueue()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeQueue()) }()
	l := latency{backend: p, broker: broker, opt: opt, one: p.transactions()[0], every: livePace, burst: 1}
	beside := l
	beside.load, beside.keys = with(&backlog{p, opt, outboxTable, 1})
	l.keys, l.load.commits = beside.keys, beside.load.commits
	side := func(l latency) func(ctx context.Context) (quantiles, error) {
		return func(ctx context.Context) (quantiles, error) { return l.relayed(ctx, p.store()) }
	}
	res.Database, res.Keys, res.Workers, res.Ordering, res.Rounds = p.database(), opt.Keys, opt.Workers, "strict", opt.Rounds
	res.Buckets, res.Rows = opt.buckets(), size
	res, err = compare(ctx, opt, res, side(beside), side(l))
	return []Result{res}, err
}

// loadQueue adds a queue for the load, so that live messages do not wait behind it
// in the broker.
func (b *broker) loadQueue() (end func() error, err error) {
	end = func() error { return second(b.ch.QueueDelete(b.name+"_load", false, false, false)) }
	err = errors.Join(
		second(b.ch.QueueDeclare(b.name+"_load", true, false, false, false, lazy)),
		b.ch.QueueBind(b.name+"_load", large{}.MessageName(), b.name, false, nil),
		b.ch.QueueBind(b.name, sold{}.MessageName(), b.name, false, nil),
		b.ch.QueueUnbind(b.name, "#", b.name, nil))
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return end, nil
}

// waitingUnkeyed measures claims beside messages without a key that wait for a
// blocked route.
func waitingUnkeyed(ctx context.Context, opt Options, name string, size int) ([]Result, error) {
	return looks(ctx, opt, name, size, func(ctx context.Context, b *backlog) error {
		if err := loadAll(ctx, b.backend, rows{first: 1, n: size, keys: 1}, unkeyedTable); err != nil {
			return err
		}
		first := true
		block := func(row outbox.ClaimedRow) (outbox.Failure, bool) {
			defer func() { first = false }()
			return outbox.Failure{Row: row, Err: errRefused, RetryIn: retryIn, Route: true, Policy: outbox.Block}, first
		}
		for before := -1; ; {
			for range 20 { // each claim holds the rows that it reads
				if _, err := b.settle(ctx, outbox.Unkeyed, block); err != nil {
					return err
				}
			}
			left, err := b.store().Backlog(ctx, outbox.DefaultTransport)
			if err != nil || left.Blocked == size {
				return err
			}
			if left.Blocked == before {
				return fmt.Errorf("%d of %d messages are held, and claims hold no more", left.Blocked, size)
			}
			before = left.Blocked
		}
	})
}

// blockedKeys measures claims beside blocked keys, none of them due.
func blockedKeys(ctx context.Context, opt Options, name string, size int) ([]Result, error) {
	return looks(ctx, opt, name, size, func(ctx context.Context, b *backlog) error {
		return b.refuse(ctx, size, false)
	})
}

// refuse loads one row for each of the keys, and blocks or parks them.
func (b *backlog) refuse(ctx context.Context, keys int, parked bool) error {
	if err := loadAll(ctx, b.backend, rows{first: 1, n: keys, keys: keys, firstKey: loadKeys}, outboxTable); err != nil {
		return err
	}
	return b.block(ctx, parked)
}

// looks measures idle and keyed claims with a backlog of waiting rows and without.
func looks(ctx context.Context, opt Options, name string, size int, load func(ctx context.Context, b *backlog) error) (_ []Result, err error) {
	var sides [2]*backlog // without and with the backlog
	for i := range sides {
		p, err := newBackend(ctx, opt)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, p.close()) }()
		sides[i] = &backlog{p, opt, outboxTable, 1}
	}
	opt.say("%s: loading %d rows", name, size)
	if err := load(ctx, sides[1]); err != nil {
		return nil, err
	}
	var idle, claim [2][]float64
	for round := range opt.Rounds + 1 {
		for turn := range sides {
			who := (round + turn) % 2
			look, keyed, err := sides[who].look(ctx)
			if err != nil {
				return nil, err
			}
			if round > 0 { // the first warms up
				idle[who], claim[who] = append(idle[who], look), append(claim[who], keyed)
			}
		}
		if round > 0 {
			i := round - 1
			opt.say("%s, round %d: idle look %.2f -> %.2f ms, keyed claim %.2f -> %.2f ms", name, round, idle[0][i], idle[1][i], claim[0][i], claim[1][i])
		}
	}
	result := func(what string, took [2][]float64, g Growth) Result {
		var factors []float64
		for i := range took[0] {
			factors = append(factors, took[1][i]/took[0][i])
		}
		g.Unit, g.From, g.To, g.Factor = "ms", median(took[0]), median(took[1]), median(factors)
		return Result{Case: fmt.Sprintf("starve, %s, %s", name, what), Database: sides[0].database(), Keys: opt.Keys, Workers: 1, Ordering: "strict", Ratio: g.Factor,
			Min: slices.Min(factors), Max: slices.Max(factors), Rounds: opt.Rounds, Buckets: opt.buckets(), Batch: opt.Batch, Rows: size, Growth: &g}
	}
	return []Result{result("idle look", idle, Growth{MaxTo: 3}), result("keyed claim", claim, Growth{MaxFactor: claimRatio})}, nil
}

// look returns two medians in milliseconds: of a claim of every part while no row
// is due, and of the claims of a keyed batch.
func (b *backlog) look(ctx context.Context) (idle, claim float64, err error) {
	var looked, claimed []time.Duration
	for range samples {
		start := time.Now()
		for part := outbox.Keyed; part <= outbox.Retries; part++ {
			if n, err := b.settle(ctx, part, nil); err != nil || n > 0 {
				return 0, 0, cmp.Or(err, fmt.Errorf("a claim of %v found %d rows where none is due", part, n))
			}
		}
		looked = append(looked, time.Since(start))
		if err := b.fill(ctx, b.opt.batch()); err != nil {
			return 0, 0, err
		}
		for n := 1; n > 0; {
			var took time.Duration
			if n, took, err = b.claim(ctx); err != nil {
				return 0, 0, err
			}
			if n > b.opt.batch()/4 { // not a remainder
				claimed = append(claimed, took)
			}
		}
	}
	if len(claimed) == 0 {
		return 0, 0, errors.New("no claim had a quarter of a batch: use a smaller --batch or fewer --buckets")
	}
	return p50(looked), p50(claimed), nil
}
