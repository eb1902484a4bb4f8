package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

// A second database that most messages need is away for an hour: they are retried without
// a count, and the others are handled meanwhile. Those that wait are more than the prefetch.
func TestPartialOutageHoldsUpNoOtherMessage(t *testing.T) {
	for name, key := range map[string]func(n int) string{
		"keyed":        func(n int) string { return fmt.Sprint("k", n%100, "-") },
		"without keys": func(int) string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := stored(t)
				var text bytes.Buffer
				p.cfg.Log = slog.New(slog.NewTextHandler(&text, nil))
				back, tries := time.Now().Add(time.Hour), 0
				p.handle(func(_ context.Context, j job) error {
					if j.K != "other" && time.Now().Before(back) {
						p.mu.Lock()
						defer p.mu.Unlock()
						tries++
						return fmt.Errorf("second database: %w", waybill.ErrUnavailable)
					}
					return nil
				})
				for n := range 500 {
					p.send(job{key(n), n})
					if n%10 == 9 {
						p.send(job{"other", n})
					}
				}
				stop := p.start(p.queue)
				handled := func(want int) {
					t.Helper()
					p.mu.Lock()
					defer p.mu.Unlock()
					if len(p.done) != want {
						t.Errorf("%d messages handled after %v, want %d", len(p.done), time.Since(back.Add(-time.Hour)), want)
					}
				}
				time.Sleep(time.Minute)
				handled(50)
				time.Sleep(time.Hour)
				handled(550)
				noError(t, stop())
				if got := len(p.of(waybill.Retrying)); got != 0 {
					t.Errorf("%d failures counted, want none", got)
				}
				for first := range 100 {
					if k, want := key(first), ""; k != "" {
						for n := first; n < 500; n += 100 {
							want += fmt.Sprint(" ", k, n)
						}
						p.wantDoneOf(k, want[1:])
					}
				}
				if n := strings.Count(text.String(), "\n"); n > 20 { // one each five minutes of the hour among them
					t.Errorf("%d lines in the log for %d attempts:\n%.2000s", n, tries, text.String())
				}
			})
		})
	}
}

// Many messages that need a lost server are retried each 30 s, and do not slow the others down.
func TestPartialOutageSlowsNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		p.handle(func(_ context.Context, j job) error {
			if j.K != "" {
				return waybill.ErrUnavailable
			}
			time.Sleep(10 * time.Millisecond)
			return nil
		})
		const n = 1200
		for i := range n {
			p.send(job{fmt.Sprint("k", i), i}, job{"", i}, job{"", i}, job{"", i})
		}
		stop := p.start(p.queue)
		time.Sleep(20 * time.Second)
		p.mu.Lock()
		if len(p.done) != 3*n {
			t.Errorf("%d messages handled, want all %d that need nothing of it", len(p.done), 3*n)
		}
		p.mu.Unlock()
		noError(t, stop())
	})
}

// Some messages need a lost server, and the store is away, too, or there is none: that is one outage of
// handlers in the log.
func TestPartialOutageWithoutAStoreIsOneInTheLog(t *testing.T) {
	for name, store := range map[string]func(p *fixture) worker.Store{
		"none": func(*fixture) worker.Store { return nil },
		"away": func(p *fixture) worker.Store {
			return &watchedStore{Store: p.db, fail: func([]worker.Move) error { return waybill.ErrUnavailable }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := stored(t)
				var text bytes.Buffer
				p.cfg.Log, p.cfg.Store = slog.New(slog.NewTextHandler(&text, nil)), store(p)
				p.handle(func(_ context.Context, j job) error {
					if j.K != "" {
						return waybill.ErrUnavailable
					}
					return nil
				})
				for n := range 10 {
					p.send(job{fmt.Sprint("k", n), n})
				}
				stop := p.start(p.queue)
				for n := range 600 {
					time.Sleep(100 * time.Millisecond)
					p.send(job{"", n})
				}
				time.Sleep(10 * time.Second)
				noError(t, stop())
				if len(p.done) != 600 {
					t.Errorf("%d messages handled, want 600", len(p.done))
				}
				if n := strings.Count(text.String(), "\n"); n > 20 { // one each five minutes of the hour among them
					t.Errorf("%d lines in the log:\n%.2000s", n, text.String())
				}
			})
		})
	}
}

// A broker that has fewer messages on their way than the worker's prefetch, by a setting or because all are of
// a few keys, sends no others before the ones with an outage have made room.
func TestPartialOutageBehindASmallWindowHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		var out atomic.Int64
		broker := &link{Queue: p.queue, ack: func(ds []*waybill.Delivery) error { out.Add(-int64(len(ds))); return nil }}
		broker.receive = func(ctx context.Context, max int) ([]*waybill.Delivery, error) {
			for {
				if n := min(max, 10-int(out.Load())); n > 0 {
					ds, err := p.queue.Receive(ctx, n)
					out.Add(int64(len(ds)))
					return ds, err
				}
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(10 * time.Millisecond):
				}
			}
		}
		p.handle(func(_ context.Context, j job) error {
			if j.K != "" {
				return waybill.ErrUnavailable
			}
			return nil
		})
		for n := range 15 {
			p.send(job{fmt.Sprint("k", n), n})
		}
		for n := range 50 {
			p.send(job{"", n})
		}
		stop := p.start(broker)
		time.Sleep(5 * time.Minute)
		noError(t, stop())
		if len(p.done) != 50 {
			t.Errorf("%d messages handled, want 50", len(p.done))
		}
	})
}

// A partial outage becomes one of all: the worker pauses, and moves no more than a few messages.
func TestPartialOutageBecomesTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		var tries atomic.Int64
		total := time.Now().Add(time.Minute)
		p.handle(func(_ context.Context, j job) error {
			if tries.Add(1); j.K != "other" || time.Now().After(total) {
				return waybill.ErrUnavailable
			}
			return nil
		})
		for n := range 500 {
			p.send(job{fmt.Sprint("k", n%5), n}, job{"other", n})
		}
		stop := p.start(p.queue)
		time.Sleep(time.Minute)
		before := tries.Load()
		for n := range 1000 {
			p.send(job{fmt.Sprint("l", n), n})
		}
		moved := p.db.Waiting("jobs")
		time.Sleep(10 * time.Minute)
		if n := tries.Load() - before; n > 500 {
			t.Errorf("%d tries in ten minutes, want pauses", n)
		}
		if n := p.db.Waiting("jobs") - moved; n > 250 {
			t.Errorf("%d messages were moved in an outage of all", n)
		}
		noError(t, stop())
	})
}

// A handler hangs, in which a message runs since before an outage, or that is the first to run after it:
// the others are handled as soon as the outage is over.
func TestHandlerThatHangsInAnOutageHoldsUpNoOther(t *testing.T) {
	for name, order := range map[string][]job{
		"begun before":   {{"hang", 1}, {"blip", 1}},
		"begun after it": {{"blip", 1}, {"hang", 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := stored(t)
				back := time.Now().Add(100 * time.Millisecond)
				p.handle(func(ctx context.Context, j job) error {
					if j.K == "hang" {
						<-ctx.Done()
						return ctx.Err()
					}
					if time.Now().Before(back) {
						return waybill.ErrUnavailable
					}
					return nil
				})
				stop := p.start(p.queue)
				for _, j := range order {
					p.send(j)
					time.Sleep(time.Millisecond)
				}
				for n := range 50 {
					p.send(job{fmt.Sprint("k", n), 1})
				}
				time.Sleep(10 * time.Second)
				p.mu.Lock()
				if len(p.done) != 51 {
					t.Errorf("%d messages handled, want 51", len(p.done))
				}
				p.mu.Unlock()
				noError(t, stop())
			})
		})
	}
}
