package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"time"
)

// A contestant moves messages from its table to the queue.
type contestant interface {
	name() string
	// load empties its table and writes n messages to it. It is not timed.
	load(ctx context.Context, n int) error
	// relay moves them all and returns how long that took: from its start, with
	// connections open, to the last confirmation at least. When it returns it has
	// stopped and its table says that all was sent.
	relay(ctx context.Context, n int) (took time.Duration, err error)
}

// A queueing contestant inserts its messages itself, and handles them in place of sending
// them. relay is an error when one is missing.
type queueing interface {
	contestant
	duplicates() int // messages that the last turn has handled more than once
}

// A contest lets waybill and each of its peers take turns.
type contest struct {
	opt      options
	db       *database
	broker   *broker
	progress io.Writer
}

// warmUp is how many messages the first round has at most, which is not counted.
const warmUp = 2000

func (c *contest) run(ctx context.Context, us contestant, them []contestant) ([]result, error) {
	tallies := make([]tally, len(them))
	for round := range c.opt.rounds + 1 {
		rows := c.opt.rows
		if round == 0 {
			rows = min(rows, warmUp)
		}
		for i, peer := range them {
			// Both sides of a pair meet the same machine, as far as that goes, and
			// each of them goes first every other time.
			var ours, theirs turn
			sides := []side{{us, &ours}, {peer, &theirs}}
			for k := range sides {
				s := sides[(k+round+i)%2]
				if err := c.turn(ctx, s.who, rows, s.turn); err != nil {
					return nil, fmt.Errorf("%s, round %d: %w", s.who.name(), round, err)
				}
			}
			if ours.disordered > 0 || ours.duplicates > 0 {
				return nil, fmt.Errorf("round %d: waybill broke its promise: %d messages behind later ones of their key, %d sent twice; that is a bug of the relay", round, ours.disordered, ours.duplicates)
			}
			if round == 0 {
				fmt.Fprintf(c.progress, "%s: warm\n", peer.name())
				continue
			}
			tallies[i].add(ours, theirs)
			fmt.Fprintf(c.progress, "%s, round %d of %d: %.0f/s against %.0f/s, %.2f\n", peer.name(), round, c.opt.rounds, ours.rate, theirs.rate, ours.rate/theirs.rate)
		}
	}
	var results []result
	for i, peer := range them {
		results = append(results, tallies[i].result(c.opt, peer.name()))
	}
	return results, nil
}

type side struct {
	who  contestant
	turn *turn
}

// A turn is what one contestant did once.
type turn struct {
	arrival
	rate float64 // messages a second
}

func (c *contest) turn(ctx context.Context, who contestant, rows int, t *turn) error {
	if err := who.load(ctx, rows); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := c.db.warm(ctx); err != nil {
		return err
	}
	runtime.GC() // what loading left is not the relay's to clear
	took, err := who.relay(ctx, rows)
	if err != nil {
		return err
	}
	t.rate = float64(rows) / took.Seconds()
	if q, ok := who.(queueing); ok {
		t.duplicates = q.duplicates()
		return nil
	}
	if t.arrival, err = c.broker.arrived(ctx, rows, c.opt.keys); err != nil {
		return err
	}
	if t.missing > 0 {
		return fmt.Errorf("%d of %d messages did not arrive at the queue", t.missing, rows)
	}
	return nil
}

// A countdown ends when so many messages were confirmed.
type countdown struct {
	left atomic.Int64
	zero chan struct{}
}

func newCountdown(n int) *countdown {
	c := &countdown{zero: make(chan struct{})}
	c.left.Store(int64(n))
	return c
}

// confirmed counts n messages. It may be called concurrently.
func (c *countdown) confirmed(n int) {
	left := c.left.Add(int64(-n))
	if left <= 0 && left+int64(n) > 0 {
		close(c.zero)
	}
}

// stall is how long nothing may be confirmed.
const stall = time.Minute

// wait returns when the countdown ended, failed sent an error or nothing moved
// for too long.
func (c *countdown) wait(ctx context.Context, failed <-chan error) error {
	tick := time.NewTicker(stall)
	defer tick.Stop()
	for before := c.left.Load(); ; {
		select {
		case <-c.zero:
			return nil
		case err := <-failed:
			return fmt.Errorf("it ended with %d messages left: %w", c.left.Load(), err)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			now := c.left.Load()
			if now == before {
				return fmt.Errorf("nothing was published for %s, with %d messages left: see its errors above, and whether database and broker are well", stall, now)
			}
			before = now
		}
	}
}
