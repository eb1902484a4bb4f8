package waybill

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// HandlerFunc handles one envelope, or passes it on.
type HandlerFunc func(ctx context.Context, env *Envelope) error

// Middleware surrounds the handling and the sending of messages. An envelope
// with a Received stamp is being handled, one without it dispatched.
type Middleware struct {
	Name string // shown by Bus.Middleware
	Wrap func(next HandlerFunc) HandlerFunc
}

// A Bus is a chain of middleware that ends in handlers or in transports.
//
// Set a bus up (handlers, routes, senders, types) before its first message;
// then it is safe for concurrent use.
type Bus struct {
	name       string
	middleware []Middleware
	chain      HandlerFunc
	serializer Serializer
	handlers   map[string][]handler // by message name, in order of registration
	senders    map[string]Sender
	routes     Routes
	observer   Observer
}

type handler struct {
	name string
	run  HandlerFunc
}

// NewBus returns a bus whose middleware runs in the given order, the first
// outermost.
func NewBus(name string, middleware ...Middleware) *Bus {
	b := &Bus{name: name, middleware: middleware, handlers: map[string][]handler{}, senders: map[string]Sender{}, routes: Routes{}, observer: Observers{}}
	b.serializer.Types = NewTypes()
	b.chain = b.end
	for _, m := range slices.Backward(middleware) {
		b.chain = m.Wrap(b.chain)
	}
	return b
}

// Name returns the name given to NewBus.
func (b *Bus) Name() string { return b.name }

// Middleware returns the names of the middleware, outermost first.
func (b *Bus) Middleware() []string {
	names := make([]string, len(b.middleware))
	for i, m := range b.middleware {
		names[i] = m.Name
	}
	return names
}

// Serializer returns the serializer of the bus, to be set up before use.
func (b *Bus) Serializer() *Serializer { return &b.serializer }

// Types returns the bus's registry. Handle registers the types it is given.
func (b *Bus) Types() *Types { return b.serializer.Types }

// SetObserver makes o receive an event for every message that the bus sends.
func (b *Bus) SetObserver(o Observer) { b.observer = Observers{o} }

// AddSender registers a transport under name. It panics on an empty or duplicate
// name.
func (b *Bus) AddSender(name string, s Sender) {
	if _, ok := b.senders[name]; ok || name == "" {
		panic(fmt.Sprintf("waybill: bus %s: transport name %q is empty or taken", b.name, name))
	}
	b.senders[name] = s
}

// Route sends messages whose name matches pattern (see Routes) to transports.
// It panics on a malformed or duplicate pattern.
func (b *Bus) Route(pattern string, transports ...string) {
	if _, ok := b.routes[pattern]; ok {
		panic(fmt.Sprintf("waybill: bus %s: route %q is registered twice", b.name, pattern))
	}
	if err := (Routes{pattern: transports}).Validate(); err != nil {
		panic(err)
	}
	b.routes[pattern] = transports
}

// Dispatch sends msg to the transports of its route, or handles it at once
// without a route. It returns the message's id, also with an error after which the
// message may have been sent.
//
// Dispatch is not part of a transaction: a message that must be sent if and only if
// a transaction commits belongs into an outbox.
func (b *Bus) Dispatch(ctx context.Context, msg any, stamps ...Stamp) (MessageID, error) {
	env := NewEnvelope(msg, stamps...)
	if _, ok := Last[Received](env); ok { // an envelope passed on is dispatched, not handled again
		env = Without[HandledBy](Without[Redelivery](Without[Received](env)))
	}
	env, err := Prepare(ctx, env)
	if err != nil {
		return MessageID{}, err
	}
	id, _ := Last[MessageID](env)
	env = env.With(BusName(b.name))
	if _, later := Last[DispatchAfterCurrentBus](env); later {
		if run := currentRun(ctx); run != nil && run.wait(func(ctx context.Context) error { return b.chain(ctx, env) }) {
			return id, nil
		}
	}
	return id, b.chain(ctx, env)
}

// Prepare gives a message about to be dispatched its id, if it has none.
func Prepare(ctx context.Context, env *Envelope) (*Envelope, error) {
	if id, ok := Last[MessageID](env); ok {
		if id.IsZero() {
			return nil, &InvalidError{"message id", id.String(), "the nil id identifies nothing"}
		}
		return env, nil
	}
	if label, ok := Last[DerivedID](env); ok {
		run := currentRun(ctx)
		if run == nil || run.handler == "" {
			return nil, errors.New("waybill: DerivedID needs the context given to a handler")
		}
		parent, _ := Last[MessageID](run.env)
		return env.With(derivedFrom(parent, run.handler, string(label))), nil
	}
	id, err := NewMessageID()
	if err != nil {
		return nil, err
	}
	return env.With(id), nil
}

// Handle runs the handlers of a received envelope, which has a Received stamp.
// Handlers named in a HandledBy stamp are left out. The error is a
// *HandlersError when handlers failed.
func (b *Bus) Handle(ctx context.Context, env *Envelope) error {
	run := &run{env: env}
	ctx = context.WithValue(ctx, runKey{}, run)
	return run.finish(ctx, b.chain(ctx, env))
}

// HandleRecord decodes a record that came from the named transport and handles it.
func (b *Bus) HandleRecord(ctx context.Context, rec *Record, transport string, failures int) error {
	env, err := b.serializer.Decode(rec)
	if err != nil {
		return err
	}
	return b.Handle(ctx, env.With(BusName(b.name), Received{transport}, Redelivery{failures}))
}

// end is the innermost link of the chain.
func (b *Bus) end(ctx context.Context, env *Envelope) error {
	if _, ok := Last[Received](env); ok {
		return b.runHandlers(ctx, env)
	}
	name, err := b.Types().NameOf(env.Message())
	if err != nil {
		return err
	}
	to := b.routes.For(name)
	if override, ok := Last[TransportNames](env); ok {
		to = override
	}
	if len(to) == 0 {
		if delay, ok := Last[Delay](env); ok && delay > 0 {
			return &InvalidError{"delay of " + name, time.Duration(delay).String(), "nothing routes it, and what is handled at once cannot wait"}
		}
		return b.handleNow(ctx, env, name)
	}
	return b.send(ctx, env, to)
}

func (b *Bus) send(ctx context.Context, env *Envelope, to []string) error {
	for _, name := range to {
		if _, ok := b.senders[name]; !ok {
			return fmt.Errorf("waybill: bus %s: unknown transport %q", b.name, name)
		}
	}
	rec, err := b.serializer.Encode(env)
	if err != nil {
		return err
	}
	for _, name := range to {
		if err := b.senders[name].Send(ctx, rec); err != nil {
			return fmt.Errorf("waybill: send %s to %s: %w", rec.Name, name, err)
		}
		b.observer.Observe(ctx, Event{Kind: Dispatched, ID: rec.ID, Name: rec.Name, Key: rec.Key, Transport: name})
	}
	return nil
}

// handleNow handles a dispatched message in place. The envelope is the
// handlers' current one, so that messages they dispatch have the right parent.
func (b *Bus) handleNow(ctx context.Context, env *Envelope, name string) error {
	run := &run{env: env.With(MessageName(name))}
	ctx = context.WithValue(ctx, runKey{}, run)
	return run.finish(ctx, b.runHandlers(ctx, run.env))
}

func (b *Bus) runHandlers(ctx context.Context, env *Envelope) error {
	name, _ := Last[MessageName](env)
	handlers := b.handlers[string(name)]
	if len(handlers) == 0 {
		return &NoHandlerError{b.name, string(name)}
	}
	run := currentRun(ctx)
	var failed []HandlerError
	for _, h := range handlers {
		if slices.Contains(All[HandledBy](env), HandledBy(h.name)) {
			continue
		}
		run.handler = h.name
		if err := h.runGuarded(ctx, env); err != nil {
			failed = append(failed, HandlerError{h.name, err})
			continue
		}
		run.succeeded = append(run.succeeded, h.name)
	}
	run.handler = ""
	if len(failed) > 0 {
		return &HandlersError{failed, run.succeeded}
	}
	return nil
}

// runGuarded turns a panic into an error of this handler alone: handlers that
// succeeded before it are not run again.
func (h handler) runGuarded(ctx context.Context, env *Envelope) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return h.run(ctx, env)
}

// run is one message being handled. Only its own goroutine touches the fields
// above mu.
type run struct {
	env       *Envelope
	handler   string   // the running handler
	succeeded []string // handlers

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
		if sendErr := f.send(ctx); sendErr != nil {
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

func currentRun(ctx context.Context) *run {
	r, _ := ctx.Value(runKey{}).(*run)
	return r
}

// EnvelopeFrom returns the envelope whose handler was given ctx, or nil.
func EnvelopeFrom(ctx context.Context) *Envelope {
	if run := currentRun(ctx); run != nil {
		return run.env
	}
	return nil
}

// Handle registers fn under a name that is unique among the handlers of M and
// never changes: inboxes and retries remember it. It panics on a duplicate
// name, and on a type that cannot be a message.
func Handle[M any](b *Bus, name string, fn func(ctx context.Context, m M) error) {
	Register[M](b.Types(), "")
	var zero M
	message, err := b.Types().NameOf(zero)
	if err != nil {
		panic(err)
	}
	b.add(message, name, func(ctx context.Context, env *Envelope) error {
		m, ok := env.Message().(M)
		if !ok {
			return &TypeError{fmt.Sprintf("%T", env.Message()), fmt.Sprintf("handler %s wants %T", name, zero)}
		}
		return fn(ctx, m)
	})
}

// HandleRaw registers fn for messages of a name that has no Go type in this process;
// fn gets the body as dispatched.
func HandleRaw(b *Bus, name, message string, fn func(ctx context.Context, m RawMessage) error) {
	b.Types().AllowRaw(message)
	b.add(message, name, func(ctx context.Context, env *Envelope) error {
		m, ok := env.Message().(RawMessage)
		if !ok {
			return &TypeError{fmt.Sprintf("%T", env.Message()), "the name is registered with a Go type, so it has no raw handler"}
		}
		return fn(ctx, m)
	})
}

func (b *Bus) add(message, name string, run HandlerFunc) {
	if name == "" || strings.ContainsAny(name, ",\x00") || len(name) > maxName {
		panic(fmt.Sprintf("waybill: bus %s: %q is no handler name", b.name, name))
	}
	if slices.ContainsFunc(b.handlers[message], func(h handler) bool { return h.name == name }) {
		panic(fmt.Sprintf("waybill: bus %s: handler %q of %s is registered twice", b.name, name, message))
	}
	b.handlers[message] = append(b.handlers[message], handler{name, run})
}
