package waybill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

type handler struct {
	name    string
	run     HandlerFunc
	answers reflect.Type // that of a query's result, or nil
	gathers int          // see HandlerOption
}

// HandlerOption tunes a handler.
type HandlerOption struct {
	// Gathers is how many messages the handler wants to run at once, each call waiting for
	// others. A worker that handles fewer at once warns. Zero means that it does not wait.
	Gathers int
}

// Handle registers fn under a name that is unique among the handlers of M and
// never changes: inboxes and retries remember it. It panics on a duplicate
// name, on a type that cannot be a message, on a nil fn, and on a negative option. Of
// several options the last counts.
func Handle[M any](b *Bus, name string, fn func(ctx context.Context, m M) error, opts ...HandlerOption) {
	b.refuseNil(name, fn == nil)
	message, run := typed(b, name, fn)
	h := handler{name: name, run: run}
	for _, o := range opts {
		h.gathers = o.Gathers
	}
	b.add(message, h)
}

// typed registers M, and returns its name and fn for envelopes.
func typed[M any](b *Bus, name string, fn func(ctx context.Context, m M) error) (message string, run HandlerFunc) {
	Register[M](b.Types(), "")
	var zero M
	message, err := b.Types().NameOf(zero)
	if err != nil {
		panic(err)
	}
	return message, func(ctx context.Context, env *Envelope) error {
		m, ok := env.Message().(M)
		if !ok {
			return &TypeError{fmt.Sprintf("%T", env.Message()), fmt.Sprintf("handler %s wants %T", name, zero)}
		}
		return fn(ctx, m)
	}
}

// HandleRaw registers fn for messages of a name that has no Go type in this process;
// fn gets the body as dispatched, in a slice of its own: it may decrypt it in place.
// It panics where Handle does, on an alias, and for a name that has a Go type.
func HandleRaw(b *Bus, name, message string, fn func(ctx context.Context, m RawMessage) error) {
	b.refuseNil(name, fn == nil)
	b.Types().AllowRaw(message)
	if typ, _, err := b.Types().lookup(message); err == nil && typ != reflect.TypeFor[RawMessage]() {
		panic(fmt.Errorf("waybill: bus %s: raw handler %q of %s would get no message: the name has the Go type %s; take Handle, or another bus", b.name, name, message, typ))
	}
	b.add(message, handler{name: name, run: func(ctx context.Context, env *Envelope) error {
		m, ok := env.Message().(RawMessage)
		if !ok {
			return &TypeError{fmt.Sprintf("%T", env.Message()), "the name is registered with a Go type, so it has no raw handler"}
		}
		m.Body = bytes.Clone(m.Body) // other handlers and a retry get it, too
		return fn(ctx, m)
	}})
}

// refuseNil panics for a handler without a function: each of its messages would.
func (b *Bus) refuseNil(name string, missing bool) {
	if missing {
		panic(fmt.Errorf("waybill: bus %s: the function of handler %q is nil", b.name, name))
	}
}

func (b *Bus) add(message string, h handler) {
	name := h.name
	if name == "" || strings.Contains(name, ",") || len(name) > maxName || checkHeader(HeaderHandledBy, name) != nil {
		panic(fmt.Errorf("waybill: bus %s: %q is no handler name: want 1 to %d bytes of UTF-8 without commas and control characters", b.name, name, maxName))
	}
	if h.gathers < 0 {
		panic(fmt.Errorf("waybill: bus %s: handler %q gathers %d messages: want zero or more", b.name, name, h.gathers))
	}
	if current, ok := b.Types().Aliases()[message]; ok {
		panic(fmt.Errorf("waybill: bus %s: handler %q of %s would get no message: the name is an alias of %s", b.name, name, message, current))
	}
	if next, ok := b.Types().Upcasters()[message]; ok {
		panic(fmt.Errorf("waybill: bus %s: handler %q of %s would get no message: an upcaster makes them %s", b.name, name, message, next))
	}
	if slices.ContainsFunc(b.handlers[message], func(h handler) bool { return h.name == name }) {
		panic(fmt.Errorf("waybill: bus %s: handler %q of %s is registered twice", b.name, name, message))
	}
	if others := b.handlers[message]; len(others) > 0 && (h.answers != nil || others[0].answers != nil) {
		panic(fmt.Errorf("waybill: bus %s: handler %q of %s: it has the handler %q, and a query has one", b.name, name, message, others[0].name))
	}
	b.handlers[message] = append(b.handlers[message], h)
}

// Handlers returns the names of the handlers of a message name, in order of
// registration.
func (b *Bus) Handlers(message string) []string {
	names := make([]string, len(b.handlers[message]))
	for i, h := range b.handlers[message] {
		names[i] = h.name
	}
	return names
}

// HasHandlers reports whether any handler is registered.
func (b *Bus) HasHandlers() bool { return len(b.handlers) > 0 }

func (b *Bus) runHandlers(ctx context.Context, env *Envelope) error {
	name, _ := Last[MessageName](env)
	handlers := b.handlers[string(name)]
	if len(handlers) == 0 {
		return &NoHandlerError{b.name, string(name)}
	}
	run := currentRun(ctx)
	if run == nil {
		return fmt.Errorf("waybill: bus %s: a middleware passed another context on: derive it from the one it was given, as by context.WithoutCancel", b.name)
	}
	var failed []HandlerError
	for _, h := range handlers {
		if slices.Contains(All[HandledBy](env), HandledBy(h.name)) {
			continue
		}
		run.begin(h.name)
		if err := run.one(ctx, h, env); err != nil {
			failed = append(failed, HandlerError{h.name, err})
			continue
		}
		run.succeeded = append(run.succeeded, h.name)
	}
	run.begin("")
	if len(failed) > 0 {
		return &HandlersError{failed, run.succeeded}
	}
	return nil
}

// one runs a handler. A panic is the failure of this handler alone: handlers that succeeded
// before it are not run again.
func (r *run) one(ctx context.Context, h handler, env *Envelope) error {
	start := time.Now()
	if r.watch.Begins != nil {
		r.watch.Begins(h.name, h.gathers)
	}
	err := Guard(func() error { return h.run(ctx, env) })
	duplicate := errors.Is(err, ErrDuplicate)
	if duplicate {
		err = nil
	}
	if r.watch.Ended != nil {
		r.watch.Ended(HandlerRun{h.name, time.Since(start), duplicate, err})
	}
	return err
}

// Guard runs fn and returns its error, or a panic of it as a *PanicError, also if the method
// Unwrap or Is of the error panics, as that of a nil pointer may.
func Guard(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	err = fn()
	_ = errors.Is(err, errNone) // calls the methods here
	return err
}

// errNone is the error of nothing.
var errNone = errors.New("none")
