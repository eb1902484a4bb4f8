package waybill

import (
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
	handler   string   // the running handler
	succeeded []string // handlers
	watch     HandlerWatch
	answer    *any // of the query that is handled; nil for other messages

	mu    sync.Mutex // guards the fields below: handlers may dispatch concurrently
	later []followUp
	over  bool // the follow-ups are sent: later ones are sent at once
}

// wait queues send as a follow-up, unless the run is over. It reports whether it
// did.
func (r *run) wait(send func(context.Context) error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.later = append(r.later, followUp{r.handler, send})
	}
	return !r.over
}

// next returns the i-th follow-up; after the last one the run is over.
func (r *run) next(i int) (followUp, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i < len(r.later) {
		return r.later[i], true
	}
	r.over = true
	return followUp{}, false
}

// A followUp is a dispatch that waits until the current message is handled.
type followUp struct {
	handler string // the dispatching handler; empty for middleware
	send    func(context.Context) error
}

// finish sends the follow-ups of the handlers that succeeded; err is the result of
// handling the message. A handler whose follow-up cannot be sent counts as failed.
func (r *run) finish(ctx context.Context, err error) error {
	result := &HandlersError{}
	if err != nil && !errors.As(err, &result) {
		r.next(len(r.later))
		return err // the message is handled again as a whole
	}
	whole := err == nil
	for i := 0; ; i++ { // follow-ups may have follow-ups
		f, ok := r.next(i)
		if !ok {
			break
		}
		if f.handler == "" && !whole || f.handler != "" && !slices.Contains(r.succeeded, f.handler) {
			continue
		}
		if sendErr := guard(func() error { return f.send(ctx) }); sendErr != nil {
			isHandler := func(name string) bool { return name == f.handler }
			r.succeeded = slices.DeleteFunc(r.succeeded, isHandler)
			result.Failed = append(result.Failed, HandlerError{f.handler, fmt.Errorf("dispatch after current bus: %w", sendErr)})
			err = result
		}
	}
	result.Succeeded = r.succeeded
	return err
}

type runKey struct{}

// A HandlerWatch is called for each handler of a message, on its goroutine: Begins before it
// runs, and Ended when it has returned or panicked. Both must be set.
type HandlerWatch struct {
	Begins func(handler string)
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
	return context.WithValue(ctx, refusalKey{}, refusal{currentRun(ctx), reason})
}

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
