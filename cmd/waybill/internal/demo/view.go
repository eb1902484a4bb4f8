package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// view shows the figures while the demo runs: redrawn in place on a terminal,
// otherwise one line every two seconds.
type view struct {
	opt     Options
	figures *Figures
	site    *deployment
	start   time.Time
	drawn   int // lines to go up before the next drawing
	last    sample
}

type sample struct {
	at                 time.Time
	committed, handled int64
}

func newView(opt Options, figures *Figures, site *deployment) *view {
	if opt.Progress == nil {
		opt.Progress = io.Discard
	}
	now := time.Now()
	return &view{opt: opt, figures: figures, site: site, start: now, last: sample{at: now}}
}

func (v *view) run(ctx context.Context) error {
	every := 2 * time.Second
	if v.opt.Live {
		every = 200 * time.Millisecond
	}
	fmt.Fprintf(v.opt.Progress, "%d orders, %d relay processes under kill -9, lost acks; seed %d\n", v.opt.Orders, relays, v.opt.Seed)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			v.draw(ctx)
		}
	}
}

func (v *view) draw(ctx context.Context) {
	out, broker, err := v.site.pending(ctx)
	if err != nil {
		return // the next look may succeed; the verdict does not depend on it
	}
	f, now := v.figures, time.Now()
	elapsed := now.Sub(v.last.at).Seconds()
	committed, handled := f.committed.Load(), f.handled.Load()
	in, done := float64(committed-v.last.committed)/elapsed, float64(handled-v.last.handled)/elapsed
	v.last = sample{now, committed, handled}
	if !v.opt.Live {
		fmt.Fprintf(v.opt.Progress, "%4.0fs committed %d, handled %d (%.0f/s), in outbox %d, in broker %d, suppressed %d, kills %d\n",
			now.Sub(v.start).Seconds(), committed, handled, done, out, broker, f.suppressed.Load(), f.kills.Load())
		return
	}
	total := int64(v.opt.Orders * steps)
	// Each line fits into 80 columns, or going up to erase would miss.
	lines := []string{
		fmt.Sprintf(" orders  %s %6d committed %6.0f/s  %5d rolled back", bar(committed, total), committed, in, f.rolledBack.Load()),
		fmt.Sprintf(" relays  %24d in the outbox       %5d killed with -9", out, f.kills.Load()),
		fmt.Sprintf(" broker  %24d in the queue        %5d acks lost", broker, f.lostAcks.Load()),
		fmt.Sprintf(" billing %s %6d handled   %6.0f/s  %5d suppressed", bar(handled, total), handled, done, f.suppressed.Load()),
	}
	v.erase()
	fmt.Fprintln(v.opt.Progress, strings.Join(lines, "\n"))
	v.drawn = len(lines)
}

func (v *view) erase() {
	if v.drawn > 0 {
		fmt.Fprintf(v.opt.Progress, "\x1b[%dA\x1b[J", v.drawn)
	}
}

// done draws the last state.
func (v *view) done() { v.draw(context.Background()) }

func bar(n, of int64) string {
	const width = 18
	full := int(min(n, of) * width / max(of, 1))
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "]"
}
