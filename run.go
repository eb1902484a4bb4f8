package waybill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// run is one message being handled. Only its own goroutine touches the fields
// above mu.
type run struct {
	env       *Envelope
	succeeded []string // handlers
	watch     HandlerWatch
	answer    *answer // of the query that is handled; nil for other messages

	mu      sync.Mutex // guards the fields below: handlers may dispatch concurrently
	handler string     // the running handler
	later   []followUp
	sending string // handler of the follow-up that is sent
	over    bool   // the follow-ups are sent: later ones are sent at once
}

// context returns the context of the run's handlers and middleware.
func (r *run) context(ctx context.Context) context.Context {
	return context.WithValue(context.WithValue(ctx, runKey{}, r), followUpsKey{}, r)
}

// wait queues send as a follow-up, unless the run is over. It reports whether it did. The
// handler is that of a message handled inside, for a run without handlers.
func (r *run) wait(handler string, send func(context.Context) error) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.later = append(r.later, followUp{cmp.Or(r.sending, r.handler, handler), send})
	}
	return !r.over
}

// takesFollowUps reports whether the run is not over. A nil one is.
func (r *run) takesFollowUps() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.over
}

// next returns the i-th follow-up; after the last one the run is over.
func (r *run) next(i int) (followUp, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i < len(r.later) {
		r.sending = r.later[i].handler
		return r.later[i], true
	}
	r.over, r.sending = true, ""
	return followUp{}, false
}

// end drops the follow-ups that were not sent: the run is over.
func (r *run) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over, r.sending = true, ""
}

// queued returns how many follow-ups there are.
func (r *run) queued() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.later)
}

// drop removes the follow-ups from the i-th on.
func (r *run) drop(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.later = r.later[:i]
}

// A followUp is a dispatch that waits until the current message is handled.
type followUp struct {
	handler string // the dispatching handler; empty for middleware
	send    func(context.Context) error
}

// passOn gives the follow-ups of a message that was handled in place to the run around it, if
// handling succeeded: err is its result. They are sent when that run ends, or at once if it has
// ended: a handler may leave a goroutine behind.
func (r *run) passOn(ctx context.Context, around *run, err error) error {
	for i := 0; ; i++ {
		f, ok := r.next(i)
		if !ok {
			return err
		}
		if err == nil && !around.wait(f.handler, f.send) {
			err = Guard(func() error { return f.send(ctx) })
		}
	}
}

// begin notes the handler that runs from now on; empty for none.
func (r *run) begin(handler string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handler = handler
}

// handling returns the handler that runs.
func (r *run) handling() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handler
}

// send sends the follow-ups that are wanted, in order, and returns the errors. A follow-up may
// have follow-ups, which come last, and none if it fails.
func (r *run) send(ctx context.Context, wanted func(handler string) bool, failed func(HandlerError)) {
	for i := 0; ; i++ {
		f, ok := r.next(i)
		if !ok {
			return
		}
		if !wanted(f.handler) {
			continue
		}
		queued := r.queued()
		if err := Guard(func() error { return f.send(ctx) }); err != nil {
			r.drop(queued)
			failed(HandlerError{f.handler, fmt.Errorf("dispatch after current bus: %w", err)})
		}
	}
}

// finish sends the follow-ups of the handlers that succeeded; err is the result of
// handling the message. A handler whose follow-up cannot be sent counts as failed.
func (r *run) finish(ctx context.Context, err error) error {
	result := &HandlersError{}
	if err != nil && !errors.As(err, &result) {
		r.end()
		return err // the message is handled again as a whole
	}
	whole := err == nil
	wanted := func(handler string) bool {
		return handler == "" && whole || handler != "" && slices.Contains(r.succeeded, handler)
	}
	r.send(ctx, wanted, func(failed HandlerError) {
		isHandler := func(name string) bool { return name == failed.Handler }
		r.succeeded = slices.DeleteFunc(r.succeeded, isHandler)
		result.Failed = append(result.Failed, failed)
		err = result
	})
	result.Succeeded = r.succeeded
	return err
}

// finishWhole sends all follow-ups of a dispatch, or none if it failed.
func (r *run) finishWhole(ctx context.Context, err error) error {
	if err != nil {
		r.end()
		return err
	}
	result := &HandlersError{}
	r.send(ctx, func(string) bool { return true }, func(failed HandlerError) { result.Failed = append(result.Failed, failed) })
	if len(result.Failed) > 0 {
		return result
	}
	return nil
}

type runKey struct{}

// A HandlerWatch is called for each handler of a message, on its goroutine: Begins before it
// runs, with its HandlerOption.Gathers, and Ended when it has returned or panicked. Both must
// be set.
type HandlerWatch struct {
	Begins func(handler string, gathers int)
	Ended  func(HandlerRun)
}

// WithHandlerWatch returns a context in which Bus.Handle and Bus.HandleRecord call w.
func WithHandlerWatch(ctx context.Context, w HandlerWatch) context.Context {
	return context.WithValue(ctx, handlerWatchKey{}, w)
}

type handlerWatchKey struct{}

func currentRun(ctx context.Context) *run {
	r, _ := ctx.Value(runKey{}).(*run)
	return r
}

// WithoutFollowUps returns a context of the current handler in which a dispatch with
// DispatchAfterCurrentBus is refused with reason. It is for handlers whose effect
// commits before their follow-ups could be sent: a retry would not run them again, and
// the follow-up would be lost. The handlers of a message dispatched in it may have
// follow-ups: they are sent before that dispatch returns.
func WithoutFollowUps(ctx context.Context, reason error) context.Context {
	run, _ := ctx.Value(followUpsKey{}).(*run)
	return context.WithValue(ctx, refusalKey{}, refusal{run, reason})
}

// followUpsOf returns the run at whose end follow-ups of ctx are sent, or nil, and the reason
// why it takes none, if there is one.
func followUpsOf(ctx context.Context) (*run, error) {
	run, _ := ctx.Value(followUpsKey{}).(*run)
	if no, ok := ctx.Value(refusalKey{}).(refusal); ok && no.run == run {
		return run, no.reason
	}
	return run, nil
}

// followUpsKey has the run at whose end follow-ups are sent: that of the current handler, or
// of a dispatch whose message is not handled yet.
type followUpsKey struct{}

type refusalKey struct{}

// refusal is the reason why a run takes no follow-ups.
type refusal struct {
	run    *run
	reason error
}

// EnvelopeFrom returns the envelope whose handler was given ctx, or nil.
func EnvelopeFrom(ctx context.Context) *Envelope {
	if run := currentRun(ctx); run != nil {
		return run.env
	}
	return nil
}
