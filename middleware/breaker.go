package middleware

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
)

// CircuitBreaker opens after so many failures in a row of received messages. While it is
// open, handlers are not called, and its error wraps waybill.ErrUnavailable: no attempt is
// counted, and the worker pauses. After the pause one message is the probe. Its success
// closes the breaker; its failure opens it for another pause, and is no attempt either.
//
// An unrecoverable error is the message's fault, and a cancelled context the worker's
// decision: they count as neither. Dispatched messages pass. The buses that share one
// CircuitBreaker share its state; processes do not. It panics unless both arguments are
// positive.
func CircuitBreaker(failures int, pause time.Duration) waybill.Middleware {
	if failures < 1 || pause <= 0 {
		panic(fmt.Errorf("middleware: circuit breaker of %d failures, pause %v: both must be positive", failures, pause))
	}
	b := &breaker{limit: failures, pause: pause}
	return waybill.Middleware{Name: "circuit breaker", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			if _, received := waybill.Last[waybill.Received](env); !received {
				return next(ctx, env)
			}
			return b.run(ctx, env, next)
		}
	}}
}

// A breaker is the state of a CircuitBreaker.
type breaker struct {
	limit int
	pause time.Duration

	mu      sync.Mutex // guards the fields below
	failed  int        // failures in a row
	open    bool
	until   time.Time // of the pause, while open
	probing bool      // a probe runs
	last    error     // the failure that opened it
}

// errPanicked is the failure of a call that did not return.
var errPanicked = errors.New("panic")

func (b *breaker) run(ctx context.Context, env *waybill.Envelope, next waybill.HandlerFunc) error {
	probe, err := b.begin(time.Now())
	if err != nil {
		return err
	}
	err = errPanicked
	defer func() { b.end(ctx, probe, err) }()
	err = next(ctx, env)
	if probe && counts(ctx, err) {
		return failedProbe(err)
	}
	return err
}

// counts reports whether err is a failure of what the handler called.
func counts(ctx context.Context, err error) bool {
	return err != nil && !waybill.IsUnrecoverable(err) && !errors.Is(ctx.Err(), context.Canceled)
}

// failedProbe marks err, and that of each handler in it, as an outage. The handlers that
// succeeded stay known.
func failedProbe(err error) error {
	mark := func(err error) error {
		return fmt.Errorf("circuit breaker: probe failed: %w: %w", waybill.ErrUnavailable, err)
	}
	var several *waybill.HandlersError
	if !errors.As(err, &several) {
		return mark(err)
	}
	marked := &waybill.HandlersError{Succeeded: several.Succeeded}
	for _, f := range several.Failed {
		marked.Failed = append(marked.Failed, waybill.HandlerError{Handler: f.Handler, Err: mark(f.Err)})
	}
	return marked
}

// begin reports whether the call is the probe, or returns the error of an open breaker.
func (b *breaker) begin(now time.Time) (probe bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.open:
		return false, nil
	case b.probing || now.Before(b.until):
		return false, fmt.Errorf("circuit breaker open after %d failures, the last: %v: %w", b.failed, b.last, waybill.ErrUnavailable)
	}
	b.probing = true
	return true, nil
}

// end counts the result of a call. While the breaker is open that of the probe alone
// counts: other calls began before.
func (b *breaker) end(ctx context.Context, probe bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open && !probe {
		return
	}
	b.probing = b.probing && !probe
	switch {
	case err == nil:
		b.failed, b.open, b.last = 0, false, nil
	case counts(ctx, err):
		b.failed++
		if b.open || b.failed >= b.limit {
			b.open, b.until, b.last = true, time.Now().Add(b.pause), err
		}
	}
}
