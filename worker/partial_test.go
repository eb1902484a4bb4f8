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
