package worker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	watchEvery = time.Second
	leakEvery  = time.Minute
	// manyGoroutines is how many of one handler, its messages in flight aside, count as a
	// leak: an HTTP client or a pool that a handler has started keeps a few for good.
	manyGoroutines = 1000
)

// watch warns once of each handler that runs for longer than SlowHandler, and of goroutines
// that handlers have left behind: when there are many, and each time they have doubled.
func (r *running) watch(ctx context.Context) {
	warned, looked := map[string]int{}, time.Now()
	for sleep(ctx.Done(), watchEvery) {
		for _, m := range r.active.slow(r.cfg.SlowHandler) {
			r.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "handler is slow, or hangs", slog.String("transport", r.cfg.Transport),
				slog.String("message", m.Name), slog.String("id", m.ID.String()), slog.String("handler", m.Handler), slog.Duration("running", time.Duration(m.Seconds*float64(time.Second))))
		}
		if time.Since(looked) < leakEvery {
			continue
		}
		looked = time.Now()
		if runtime.NumGoroutine() < manyGoroutines {
			continue
		}
		for handler, n := range goroutinesOf(r.cfg.Transport) {
			if n >= max(manyGoroutines, 2*warned[handler]) {
				warned[handler] = n
				r.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "goroutines that a handler has started do not end", slog.String("transport", r.cfg.Transport),
					slog.String("handler", handler), slog.Int("goroutines", n))
			}
		}
	}
}

// gathers warns once of a handler that waits for more messages than can run at once. A refusal
// by New would be wrong: a bus may serve several workers, and this one have none of its messages.
func (r *running) gathers(handler string, n int) {
	most := r.cfg.Concurrency
	if r.cfg.Slots != nil {
		most = min(most, r.cfg.Slots.n)
	}
	if n <= most {
		return
	}
	if _, warned := r.starved.LoadOrStore(handler, nil); !warned {
		r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "a group or batch never fills: set the concurrency to its size at least, or make it smaller",
			slog.String("transport", r.cfg.Transport), slog.String("handler", handler), slog.Int("size", n), slog.Int("concurrency", most))
	}
}

// The labels of the goroutines of handlers, and of all that these start.
const (
	handlerLabel   = "waybill_handler"
	transportLabel = "waybill_transport"
)

// labelled returns a context with the labels of a handler's goroutine.
func labelled(transport, handler string) context.Context {
	return pprof.WithLabels(context.Background(), pprof.Labels(handlerLabel, handler, transportLabel, transport))
}

// goroutinesOf counts the goroutines with the label of a transport by handler.
func goroutinesOf(transport string) map[string]int {
	var profile bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&profile, 1) // a buffer takes all
	found := map[string]int{}
	for _, stack := range strings.Split(profile.String(), "\n\n") {
		labels := labelsForm.FindStringSubmatch(stack)
		if labels == nil {
			continue
		}
		handler, err := strconv.Unquote(labels[2])
		if of, other := strconv.Unquote(labels[3]); err != nil || other != nil || of != transport {
			continue
		}
		n, _ := strconv.Atoi(labels[1])
		found[handler] += n
	}
	return found
}

var labelsForm = regexp.MustCompile(`(?m)^(\d+) @.*\n# labels: \{.*"` + handlerLabel + `":("(?:[^"\\]|\\.)*"), "` + transportLabel + `":("(?:[^"\\]|\\.)*")`)

// ignoring is the error of handlers that run on after their contexts have ended.
func (r *running) ignoring() error {
	var names []string
	for _, m := range r.active.list(r.cfg.Transport) {
		names = append(names, fmt.Sprintf("%s of %s %s", handlerName(m.Handler), m.Name, m.ID))
	}
	slices.Sort(names)
	rest := ""
	if n := len(names) - maxRunningReported; n > 0 {
		names, rest = names[:maxRunningReported], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("worker: %d handlers ignore the end of their context after %v: %s%s: their messages come again", r.busy, r.cfg.Drain, strings.Join(names, ", "), rest)
}

// handlerName names what runs for a message.
func handlerName(handler string) string {
	if handler == "" {
		return "middleware"
	}
	return handler
}

// Alive returns an error if the worker runs and takes no decision for a time. Handlers that
// hang are none: see Config.SlowHandler. It is for a watchdog.
func (w *Worker) Alive(within time.Duration) error {
	for deadline := time.Now().Add(within); w.runs.Load() > 0; {
		select {
		case w.pings <- struct{}{}:
			return nil
		case <-time.After(min(within, aliveEvery)): // it may have ended
		}
		if !time.Now().Before(deadline) && w.runs.Load() > 0 {
			return fmt.Errorf("worker: %s has not moved for %v", w.cfg.Transport, within)
		}
	}
	return nil
}

// aliveEvery is how often Alive looks whether the worker has ended.
const aliveEvery = 50 * time.Millisecond
