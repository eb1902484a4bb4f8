package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"time"

	"github.com/waybill-go/waybill"
)

// handleReady makes the calls of handle that are ready, one after another, until ready is closed:
// a new goroutine for each would grow its stack anew. A handler that ends the goroutine has
// another one begin.
func (r *running) handleReady() {
	closed := false
	defer func() {
		if !closed {
			go r.handleReady()
		}
	}()
	for {
		pprof.SetGoroutineLabels(r.work) // with those of a handler it would count as one that has been left
		handle, ok := <-r.ready
		if closed = !ok; closed {
			return
		}
		handle()
	}
}

// handle runs the handlers of d, and reports the outcome also when one ends its
// goroutine.
func (r *running) handle(ctx context.Context, cancel context.CancelCauseFunc, s *source, d *waybill.Delivery) {
	o := outcome{from: s, d: d, err: errGoexit}
	if !r.cfg.Slots.acquire(r.intake, r.share) {
		cancel(nil)
		r.done <- outcome{from: s, d: d, err: ErrDrained, cause: ErrDrained} // nothing of it has begun
		return
	}
	defer r.cfg.Slots.release(r.share)
	if cause := context.Cause(ctx); cause != nil { // its lease was lost while it waited
		cancel(nil)
		r.done <- outcome{from: s, d: d, err: cause, cause: cause}
		return
	}
	start := time.Now()
	begins := r.active.begin(r.cfg.Transport, d)
	var ran []waybill.HandlerRun
	step := r.observer.Begin(ctx, waybill.Handled, r.cfg.Transport, d.Record)
	defer func() {
		handler := r.active.end(d)
		if errors.Is(o.err, errGoexit) && handler != "" {
			ran = append(ran, waybill.HandlerRun{Handler: handler, Duration: time.Since(start), Err: o.err})
			o.err = &waybill.HandlersError{Failed: []waybill.HandlerError{{Handler: handler, Err: o.err}}}
		}
		if o.err != nil {
			if o.cause = context.Cause(ctx); o.cause != nil && !errors.Is(o.err, o.cause) {
				o.err = fmt.Errorf("%w: %w", o.cause, o.err)
			}
		}
		cancel(nil)
		r.cfg.Process.count(o.err)
		e := r.event(waybill.Handled, d, time.Since(start), o.err)
		e.Handlers, e.Age = ran, age(d.Record)
		r.observer.Observe(step, e)
		r.done <- o
	}()
	err := r.checkCrashes(ctx, s, d)
	if errors.Is(err, waybill.ErrLeaseLost) {
		cancel(err) // finish then leaves the message to its new holder, and counts no failure
	}
	if err == nil {
		watch := waybill.HandlerWatch{Begins: func(handler string, gathers int) { begins(handler); r.gathers(handler, gathers) }, Ended: func(run waybill.HandlerRun) { ran = append(ran, run) }}
		ctx := waybill.WithObserver(waybill.WithHandlerWatch(step, watch), r.observer)
		err = r.bus.HandleRecord(ctx, d.Record, r.cfg.Transport, d.Failures)
	}
	o.err = err
}

// age is the time since the dispatch of rec: zero if it is unknown, and positive although
// clocks differ.
func age(rec *waybill.Record) time.Duration {
	if rec.DispatchedAt.IsZero() {
		return 0
	}
	return max(time.Since(rec.DispatchedAt), 1)
}

// errGoexit is the failure of a handler that ended its goroutine.
var errGoexit = waybill.Unrecoverable(errors.New("a handler called runtime.Goexit"))

// checkCrashes counts the start of a redelivered message of the retry queue, and returns
// an error if it has ended its process too often.
func (r *running) checkCrashes(ctx context.Context, s *source, d *waybill.Delivery) error {
	if s != r.retries || !d.Redelivered {
		return nil
	}
	crashes, err := s.retries.Begin(ctx, d)
	if err == nil && crashes >= r.cfg.MaxCrashes {
		err = waybill.Unrecoverable(fmt.Errorf("its process ended %d times while it was handled", crashes))
	}
	return err
}
