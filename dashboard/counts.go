package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

const (
	// patience is how long a page waits for a count. An answer of the API waits as long as it may.
	patience = 200 * time.Millisecond
	patient  = time.Hour
	// quick is the time of a count that each page may have anew.
	quick = 20 * time.Millisecond
	// countTimeout bounds a count.
	countTimeout = time.Minute
	// keptCounts bounds the memory of counts.
	keptCounts = 100
)

// counts are the results of statements that read whole tables. They run in the background, one
// at a time, when a page needs them; a page shows the last result with its age where a new one
// takes longer than patience.
type counts struct {
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slot   chan struct{} // of the connection, beside those of pages

	mu    sync.Mutex
	byKey map[string]*figure // guarded by mu, as are their fields
}

// A figure is one result.
type figure struct {
	value any
	at    time.Time // when value was read; zero before the first one
	err   error     // of the last run
	ended time.Time // of the last run
	took  time.Duration
	done  chan struct{} // closed at the end of the run in progress; nil without one
}

func newCounts(log *slog.Logger) *counts {
	ctx, cancel := context.WithCancel(context.Background())
	return &counts{log: log, ctx: ctx, cancel: cancel, slot: make(chan struct{}, 1), byKey: map[string]*figure{}}
}

func (c *counts) close() {
	c.mu.Lock()
	c.cancel()
	c.mu.Unlock()
	c.wg.Wait()
}

// figureOf returns the result of read under its key, and when it was read: zero if none is known
// within the time to wait, or a page would have to do without it because it takes longer than
// countTimeout. A small table is read for each page. Other reads have pauses ten times
// as long as themselves: however many pages are open, a connection counts for a tenth of its time.
func figureOf[T any](ctx context.Context, c *counts, key string, wait time.Duration, read func(ctx context.Context) (T, error)) (value T, at time.Time, err error) {
	f, done := c.start(key, func(ctx context.Context) (any, error) { return read(ctx) })
	if done != nil {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		case <-ctx.Done():
			return value, at, ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case f.value != nil && !f.stale(time.Now()):
		return f.value.(T), f.at, nil
	case wait < patient && errors.Is(f.err, context.DeadlineExceeded):
		return value, time.Time{}, nil
	}
	return value, time.Time{}, f.err
}

// stale reports whether the value is too old to be shown: no page has asked for it since.
func (f *figure) stale(now time.Time) bool { return now.Sub(f.at) > time.Minute+30*f.took }

// start begins a run of the figure of a key if it is time, and returns the figure and what to wait
// for: nil if its value is to be shown at once.
func (c *counts) start(key string, read func(ctx context.Context) (any, error)) (*figure, chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	f := c.byKey[key]
	if f == nil {
		c.forget()
		f = &figure{}
		c.byKey[key] = f
	}
	pause := f.took > quick && now.Sub(f.ended) <= 10*f.took
	if f.done == nil && c.ctx.Err() == nil && !pause {
		f.done = make(chan struct{})
		c.wg.Go(func() { c.run(key, f, read) })
	}
	if (pause || f.took > patience) && f.value != nil && !f.stale(now) {
		return f, nil
	}
	return f, f.done
}

// outdate ends the pauses of all figures, after a change.
func (c *counts) outdate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.byKey {
		f.ended = time.Time{}
	}
}

// run reads f.
func (c *counts) run(key string, f *figure, read func(ctx context.Context) (any, error)) {
	c.slot <- struct{}{}
	ctx, cancel := context.WithTimeout(c.ctx, countTimeout)
	start := time.Now()
	value, err := read(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		c.log.LogAttrs(ctx, slog.LevelWarn, "a count has not ended in time", slog.String("count", key), slog.Duration("within", countTimeout))
	}
	cancel()
	<-c.slot
	c.mu.Lock()
	defer c.mu.Unlock()
	f.err, f.ended = err, time.Now()
	f.took = f.ended.Sub(start)
	if err == nil {
		f.value, f.at = value, start
	}
	close(f.done)
	f.done = nil
}

// forget makes room for another figure.
func (c *counts) forget() {
	oldest, first := "", time.Now()
	for key, f := range c.byKey {
		if f.done == nil && f.ended.Before(first) {
			oldest, first = key, f.ended
		}
	}
	if len(c.byKey) >= keptCounts {
		delete(c.byKey, oldest)
	}
}
