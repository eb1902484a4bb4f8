package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
)

const (
	badRatio   = 1.25 // of the 99th percentiles, at the most
	badOfKey   = 10   // messages of a bad key, of which the third fails
	badFails   = 3
	badDelay   = time.Second // between its attempts
	badLeaving = time.Minute // the longest that they take once it is mended
)

// retryingKeys measures live messages of a worker while the third of ten messages of other
// keys fails, and those behind it wait, against the same while none fails.
func retryingKeys(ctx context.Context, opt Options, name string, size int) (_ []Result, err error) {
	sides, closeAll, err := retryingSides(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	for i, r := range sides {
		r.retry = waybill.Backoff{Delay: badDelay, Multiplier: 1}
		r.keys = &badKeys{n: size, failing: i == 0}
	}
	res := Result{Case: "starve, " + name, Database: sides[0].name, Keys: opt.Keys, Workers: 10, Ordering: "strict", Rounds: opt.Rounds, Rows: size, MaxRatio: badRatio}
	if res, err = compare(ctx, opt, res, sides[0].side, sides[1].side); err != nil {
		return nil, err
	}
	return []Result{res}, sides.failed(opt, res)
}

// badKeys are keys whose third message fails while a slice is measured. A nil pointer has no
// keys, and all bad messages fail.
type badKeys struct {
	n       int
	failing bool // on this side

	fail atomic.Bool
	mu   sync.Mutex
	last map[string]int // the number of the last message handled, by key
	left int
}

// begin publishes the messages of all keys.
func (b *badKeys) begin(ctx context.Context, r *retrying) error {
	if b == nil {
		return nil
	}
	b.fail.Store(b.failing)
	b.mu.Lock()
	b.last, b.left = map[string]int{}, b.n*badOfKey
	b.mu.Unlock()
	for n := range badOfKey {
		for key := range b.n {
			if err := r.send(ctx, stamped{Key: fmt.Sprint("bad-", key), Bad: true, N: n + 1}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *badKeys) fails(m stamped) bool { return b == nil || m.N == badFails && b.fail.Load() }

// handled is an error if m is not the next message of its key.
func (b *badKeys) handled(m stamped) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last[m.Key]+1 != m.N {
		return fmt.Errorf("message %d of %s was handled after %d", m.N, m.Key, b.last[m.Key])
	}
	b.last[m.Key], b.left = m.N, b.left-1
	return nil
}

// end mends the third messages, and waits until all are handled.
func (b *badKeys) end(ctx context.Context) error {
	if b == nil {
		return nil
	}
	b.fail.Store(false)
	late := time.After(badLeaving)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		b.mu.Lock()
		left := b.left
		b.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return fmt.Errorf("%d messages of bad keys were not handled within %v", left, badLeaving)
		case <-tick.C:
		}
	}
}
