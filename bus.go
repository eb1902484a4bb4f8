package waybill

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/suggest"
)

// HandlerFunc handles one envelope, or passes it on.
type HandlerFunc func(ctx context.Context, env *Envelope) error

// Middleware surrounds the handling and the sending of messages. An envelope
// with a Received stamp is being handled, one without it dispatched. It calls next with
// a context derived from its own, on its own goroutine: a handler that it left behind
// would go on beside the retry of its message.
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
	observer   Observers
}

// NewBus returns a bus whose middleware runs in the given order, the first
// outermost.
func NewBus(name string, middleware ...Middleware) *Bus {
	b := &Bus{name: name, middleware: middleware, handlers: map[string][]handler{}, senders: map[string]Sender{}, routes: Routes{}}
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
// name, and on a nil sender.
func (b *Bus) AddSender(name string, s Sender) {
	if _, ok := b.senders[name]; ok || name == "" {
		panic(fmt.Errorf("waybill: bus %s: transport name %q is empty or taken", b.name, name))
	}
	if s == nil {
		panic(fmt.Errorf("waybill: bus %s: the sender of transport %q is nil", b.name, name))
	}
	b.senders[name] = s
}

// Route sends messages whose name matches pattern (see Routes) to transports.
// It panics on a malformed or duplicate pattern.
func (b *Bus) Route(pattern string, transports ...string) {
	if _, ok := b.routes[pattern]; ok {
		panic(fmt.Errorf("waybill: bus %s: route %q is registered twice", b.name, pattern))
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
	env, err := b.serializer.Prepare(ctx, NewEnvelope(msg, stamps...))
	if err != nil {
		return MessageID{}, err
	}
	id, _ := Last[MessageID](env)
	return id, b.dispatch(ctx, env.With(BusName(b.name)))
}

// dispatch sends an envelope through the chain, now or as a follow-up of the run that ctx
// belongs to. Without such a run, and where that takes none, it is one itself: follow-ups of
// its handlers and middleware are sent when the chain has returned.
func (b *Bus) dispatch(ctx context.Context, env *Envelope) error {
	_, later := Last[DispatchAfterCurrentBus](env)
	env = Without[DispatchAfterCurrentBus](env)
	around, reason := followUpsOf(ctx)
	switch {
	case later && reason != nil:
		return reason
	case later && around.wait("", func(ctx context.Context) error { return b.chain(ctx, env) }):
		return nil
	case around.takesFollowUps() && reason == nil:
		return b.chain(ctx, env)
	}
	whole := &run{}
	ctx = context.WithValue(ctx, followUpsKey{}, whole)
	return whole.finishWhole(ctx, b.chain(ctx, env))
}

// Handle runs the handlers of a received envelope, which has the stamps Received, MessageName
// and MessageID: HandleRecord makes it.
// Handlers named in a HandledBy stamp are left out. The error is a
// *HandlersError when handlers failed, a *PanicError when middleware panicked.
func (b *Bus) Handle(ctx context.Context, env *Envelope) error {
	run := &run{env: env}
	run.watch, _ = ctx.Value(handlerWatchKey{}).(HandlerWatch)
	ctx = run.context(ctx)
	return run.finish(ctx, Guard(func() error { return b.chain(ctx, env) }))
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
	if u, ok := Last[Unique](env); ok {
		return &InvalidError{"unique key of " + name, u.Key, "a bus keeps no keys: dispatch the message through an outbox"}
	}
	to := b.routes.For(name)
	if override, ok := Last[TransportNames](env); ok {
		if err := override.Validate(); err != nil {
			return err
		}
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
			return fmt.Errorf("waybill: bus %s: unknown transport %q: %s; AddSender adds one", b.name, name, suggest.Hint(name, slices.Sorted(maps.Keys(b.senders)), "transports"))
		}
	}
	rec, err := b.serializer.Encode(env)
	if err != nil {
		return err
	}
	b.observer.Begin(ctx, Dispatched, to[0], rec)
	for _, name := range to {
		if err := b.senders[name].Send(ctx, rec); err != nil {
			return fmt.Errorf("waybill: send %s to %s: %w", rec.Name, name, err)
		}
		b.observer.Observe(ctx, Event{Kind: Dispatched, ID: rec.ID, Name: rec.Name, Key: rec.Key, Transport: name, Record: rec})
	}
	return nil
}

// handleNow handles a dispatched message in place. The envelope is the
// handlers' current one, so that messages they dispatch have the right parent.
func (b *Bus) handleNow(ctx context.Context, env *Envelope, name string) error {
	newest, message, err := b.Types().upcast(name, env.message)
	if err != nil {
		return err
	}
	run := &run{env: (&Envelope{message, Without[MessageName](env).stamps}).With(stampsOf(newest, name)...), answer: answerTo(ctx, env)}
	around, _ := followUpsOf(ctx)
	err = b.runHandlers(run.context(ctx), run.env)
	return run.passOn(ctx, around, err)
}
