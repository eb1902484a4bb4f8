package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
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
				if n := strings.Count(text.String(), "\n"); n > 10 {
					t.Errorf("%d lines in the log for %d attempts:\n%.2000s", n, tries, text.String())
				}
			})
		})
	}
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
