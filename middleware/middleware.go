package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
)

// Recover turns a panic further in into a *waybill.PanicError. A panicking
// handler needs no help, the bus sees to it; this guards middleware and senders.
func Recover() waybill.Middleware {
	return waybill.Middleware{Name: "recover", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			return waybill.Guard(func() error { return next(ctx, env) })
		}
	}}
}

// Log writes one debug line for each message that is handled or dispatched, with
// its duration and error. The worker, which decides about a retry, logs the error
// at a higher level. Log never logs bodies. A nil log discards.
func Log(log *slog.Logger) waybill.Middleware {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return waybill.Middleware{Name: "log", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			if !log.Enabled(ctx, slog.LevelDebug) {
				return next(ctx, env)
			}
			start := time.Now()
			err := next(ctx, env)
			log.LogAttrs(ctx, slog.LevelDebug, verb(env), attrs(env, time.Since(start), err)...)
			return err
		}
	}}
}

func verb(env *waybill.Envelope) string {
	if _, ok := waybill.Last[waybill.Received](env); ok {
		return "handled"
	}
	return "dispatched"
}

func attrs(env *waybill.Envelope, took time.Duration, err error) []slog.Attr {
	id, _ := waybill.Last[waybill.MessageID](env)
	as := []slog.Attr{slog.String("id", id.String()), slog.Duration("took", took)}
	if name, ok := waybill.Last[waybill.MessageName](env); ok {
		as = append(as, slog.String("message", string(name)))
	}
	if from, ok := waybill.Last[waybill.Received](env); ok {
		as = append(as, slog.String("transport", from.Transport))
	}
	if again, ok := waybill.Last[waybill.Redelivery](env); ok && again.Failures > 0 {
		as = append(as, slog.Int("failures", again.Failures))
	}
	if err != nil {
		as = append(as, slog.Any("err", err))
	}
	return as
}

// Timeout cancels the context of the inner middleware and the handler after d, with
// a cause that says so. It panics when d is not positive: use no middleware for no
// timeout.
func Timeout(d time.Duration) waybill.Middleware {
	if d <= 0 {
		panic(fmt.Errorf("middleware: timeout %v is not positive", d))
	}
	cause := fmt.Errorf("handler ran longer than %v: %w", d, context.DeadlineExceeded)
	return waybill.Middleware{Name: "timeout", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			if sooner, ok := ctx.Deadline(); ok && time.Until(sooner) <= d {
				return next(ctx, env)
			}
			ctx, cancel := context.WithTimeoutCause(ctx, d, cause)
			defer cancel()
			err := next(ctx, env)
			if err != nil && errors.Is(err, context.DeadlineExceeded) && context.Cause(ctx) == cause && !errors.Is(err, cause) {
				return fmt.Errorf("%w: %w", cause, err)
			}
			return err
		}
	}}
}

// Validator is a message that can check its own content, with a receiver of either kind.
type Validator interface{ Validate() error }

// Validate refuses a message whose Validate method returns an error: a dispatch
// has no effect, a received message is not retried.
func Validate() waybill.Middleware {
	return waybill.Middleware{Name: "validate", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			if v := validator(env.Message()); v != nil {
				if err := v.Validate(); err != nil {
					return waybill.Unrecoverable(fmt.Errorf("invalid %T: %w", env.Message(), err))
				}
			}
			return next(ctx, env)
		}
	}}
}

// validator returns a message as a Validator, or nil. One whose method has a pointer receiver
// is a copy: messages are no pointers, and it would be missed.
func validator(msg any) Validator {
	if v, ok := msg.(Validator); ok {
		return v
	}
	typ := reflect.TypeOf(msg)
	validates, known := byPointer.Load(typ)
	if !known && typ != nil {
		validates = reflect.PointerTo(typ).Implements(reflect.TypeFor[Validator]())
		byPointer.Store(typ, validates)
	}
	if validates != true {
		return nil
	}
	copied := reflect.New(typ)
	copied.Elem().Set(reflect.ValueOf(msg))
	return copied.Interface().(Validator)
}

var byPointer sync.Map // reflect.Type -> bool: whether pointers to it are Validators

// Ordered refuses to dispatch a message without a partition key.
func Ordered() waybill.Middleware {
	return waybill.Middleware{Name: "ordered", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			if _, received := waybill.Last[waybill.Received](env); !received && key(env) == "" {
				return fmt.Errorf("%T has no partition key, and this bus orders every message", env.Message())
			}
			return next(ctx, env)
		}
	}}
}

func key(env *waybill.Envelope) string {
	if k, ok := waybill.Last[waybill.PartitionKey](env); ok {
		return string(k)
	}
	if keyed, ok := env.Message().(waybill.Keyed); ok {
		return keyed.PartitionKey()
	}
	return ""
}

// Correlation gives a message dispatched by a handler the correlation id of the
// message being handled, or its id, and that id as causation id.
func Correlation() waybill.Middleware {
	return waybill.Middleware{Name: "correlation", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			parent := waybill.EnvelopeFrom(ctx)
			if _, received := waybill.Last[waybill.Received](env); received || parent == nil {
				return next(ctx, env)
			}
			id, _ := waybill.Last[waybill.MessageID](parent)
			if _, set := waybill.Last[waybill.CausationID](env); !set {
				env = env.With(waybill.CausationID(id.String()))
			}
			if _, set := waybill.Last[waybill.CorrelationID](env); !set {
				correlation, ok := waybill.Last[waybill.CorrelationID](parent)
				if !ok {
					correlation = waybill.CorrelationID(id.String())
				}
				env = env.With(correlation)
			}
			return next(ctx, env)
		}
	}}
}
