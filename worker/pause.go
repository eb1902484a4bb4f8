package worker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"
)

// Instructions are the wishes of operators for one process.
type Instructions struct {
	Stop   bool     // the process is to end
	Paused []string // transports whose workers receive no messages, in any order
}

// pauses are the paused transports, as far as a process knows them.
type pauses struct {
	known      bool // the registry has answered once
	transports []string
	changed    chan struct{} // closed at the next change
}

// setPaused keeps the paused transports of an answer of the registry. A report without an
// answer changes nothing.
func (p *Process) setPaused(transports []string) {
	transports = slices.Sorted(slices.Values(transports))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused.known && slices.Equal(p.paused.transports, transports) {
		return
	}
	if !slices.Equal(p.paused.transports, transports) {
		p.report()
	}
	close(p.paused.changed)
	p.paused = pauses{true, transports, make(chan struct{})}
}

// pauseState returns whether the pause of a transport is known, whether it is paused, and a
// channel that is closed at the next change.
func (p *Process) pauseState(transport string) (known, paused bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused.known, slices.Contains(p.paused.transports, transport), p.paused.changed
}

// awaitPause waits until a transport is known to be paused. It reports false when ctx ends
// first; a nil Process has no pauses.
func (p *Process) awaitPause(ctx context.Context, transport string) bool {
	if p == nil {
		return false
	}
	for {
		known, paused, changed := p.pauseState(transport)
		if known && paused {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// errNoContext is the error of a worker whose process does not report, and so would never
// hear of a pause.
var errNoContext = errors.New("worker: config: the Context of Process was not called: run the worker in the context that it returns")

// awaitResume waits, while the transport is paused or the registry has not answered yet, and
// the receiver holds no messages meanwhile. It reports false when ctx ends, or a pause lasts
// for the idle time.
func (w *Worker) awaitResume(ctx context.Context) bool {
	p := w.cfg.Process
	if p == nil {
		return true
	}
	var idle <-chan time.Time
	waits := false
	for {
		known, paused, changed := p.pauseState(w.cfg.Transport)
		if known && !paused {
			if waits {
				w.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "transport resumed", slog.String("transport", w.cfg.Transport))
			}
			return ctx.Err() == nil
		}
		if known && !waits {
			waits = true
			w.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "transport paused by an operator, the worker waits", slog.String("transport", w.cfg.Transport))
			if w.cfg.Idle > 0 {
				idle = time.After(w.cfg.Idle)
			}
			p.report() // nothing is in flight now
		}
		w.suspend(ctx)
		select {
		case <-changed:
		case <-idle:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// suspend has the receiver give back the messages that it has prefetched.
func (w *Worker) suspend(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := w.from.Suspend(ctx); err != nil && ctx.Err() == nil {
		w.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "prefetched messages not given back", slog.String("transport", w.cfg.Transport), slog.Any("err", err))
	}
}
