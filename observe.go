package waybill

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"
)

// An Observer receives events, for logs, metrics and traces. Observe is called
// concurrently on the path of every message: it must be quick and must not keep the
// event's error beyond the call.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// A Tracer is an Observer that hears of the beginning of steps, too.
type Tracer interface {
	Observer
	// Begin is called before the steps Dispatched (once for all transports), Published and
	// Handled, and returns the context of the step: that of the handlers and of the event
	// Handled. Before the first two it may set headers of rec, which travel with it; it does
	// not keep rec. A step may end without an event. Begin is called concurrently, and must
	// be quick.
	Begin(ctx context.Context, step EventKind, transport string, rec *Record) context.Context
	// Group is called before a relay publishes a batch (Published), and before handlers of
	// several messages share a transaction (Handled), with the contexts of their steps; end
	// when the batch or the transaction has ended, with its error. End may be nil.
	Group(step EventKind, transport string, members []context.Context) (end func(err error))
}

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds of events, each with the fields of an Event that are set.
const (
	Dispatched    EventKind = iota + 1 // a message was written to an outbox or sent: ID, Name, Key, Transport
	Published                          // a relay's message was confirmed: ID, Name, Key, Transport, Exchange, RoutingKey, Duration since its dispatch
	PublishFailed                      // it was refused: ID, Name, Key, Transport, Failures, Delay, Err
	KeyBlocked                         // it blocks its key or route until a retry: ID, Name, Key, Transport, Failures, Delay, Err
	KeyReleased                        // a blocked key's head was published: ID, Name, Key, Transport
	KeyParked                          // it was refused for the last time, and its key is parked: ID, Name, Key, Transport, Failures, Err
	Skipped                            // it moved to the dead letters, and its key continues: ID, Name, Key, Transport, Failures, Err
	Handled                            // handlers ran: ID, Name, Key, Transport, Failures, Duration, Age, Handlers, Err
	Duplicate                          // an inbox had an entry for it: ID, Name, Key, Transport, Handler
	Retrying                           // it will be handled again: ID, Name, Key, Transport, Failures, Delay, Err
	LeaseLost                          // its lease passed to another worker: ID, Name, Key, Transport, Failures, Err
)

// String returns the kind in the words of the documentation.
func (k EventKind) String() string {
	names := [...]string{"", "dispatched", "published", "publish failed", "key blocked", "key released", "key parked", "skipped", "handled", "duplicate", "retrying", "lease lost"}
	if int(k) < len(names) {
		return names[k]
	}
	return ""
}

// An Event is one step of a message. Fields that its Kind does not list may be zero.
type Event struct {
	Kind       EventKind
	ID         MessageID
	Name       string
	Key        string
	Transport  string
	Handler    string
	Exchange   string // at the broker, as RoutingKey
	RoutingKey string
	Failures   int
	Duration   time.Duration
	Delay      time.Duration
	Age        time.Duration // since dispatch, by the clocks of both processes; zero means unknown
	Handlers   []HandlerRun  // in the order in which they ran
	Err        error
	// Record is the message of Dispatched, Published, PublishFailed and Handled. It is not to
	// be kept or changed, and its body and headers belong into no log, metric or trace.
	Record *Record
}

// A HandlerRun is one run of one handler.
type HandlerRun struct {
	Handler   string
	Duration  time.Duration
	Duplicate bool // its inbox had an entry for the message, and it had no effect
	Err       error
}

// Observers passes each event to all its members but nil ones. A member that panics
// loses that event alone: the panic is logged by slog.Default, like that of an HTTP
// handler, and the message continues.
type Observers []Observer

// Observe calls each member in turn.
func (os Observers) Observe(ctx context.Context, e Event) {
	for _, o := range os {
		if o != nil {
			observe(ctx, o, e)
		}
	}
}

// Begin calls each member that is a Tracer in turn.
func (os Observers) Begin(ctx context.Context, step EventKind, transport string, rec *Record) context.Context {
	for _, o := range os {
		if t, ok := o.(Tracer); ok {
			ctx = begin(ctx, t, step, transport, rec)
		}
	}
	return ctx
}

// Group calls each member that is a Tracer in turn, unless it would be a group of one. End is
// not nil.
func (os Observers) Group(step EventKind, transport string, members []context.Context) (end func(error)) {
	var ends []func(error)
	for _, o := range os {
		t, ok := o.(Tracer)
		if !ok || len(members) < 2 {
			continue
		}
		logPanic(Guard(func() error {
			if end := t.Group(step, transport, members); end != nil {
				ends = append(ends, end)
			}
			return nil
		}))
	}
	return func(err error) {
		for _, end := range ends {
			logPanic(Guard(func() error { end(err); return nil }))
		}
	}
}

func logPanic(err error) {
	if err != nil {
		slog.Error("observer panicked", slog.Any("panic", err))
	}
}

// ReportGroup is Group of the observer in the context of the first member.
func ReportGroup(transport string, members []context.Context) (end func(error)) {
	o, _ := members[0].Value(observerKey{}).(Observers)
	return o.Group(Handled, transport, members)
}

// WithObserver returns a context for Bus.Handle and Bus.HandleRecord in which o receives the
// events that handlers report, such as the duplicates of an inbox. A worker gives them its
// Observer.
func WithObserver(ctx context.Context, o Observer) context.Context {
	return context.WithValue(ctx, observerKey{}, Observers{o})
}

type observerKey struct{}

// Report passes e to the observer of a handler's context. Without one it does nothing.
func Report(ctx context.Context, e Event) {
	o, _ := ctx.Value(observerKey{}).(Observers)
	o.Observe(ctx, e)
}

func observe(ctx context.Context, o Observer, e Event) {
	defer contain(ctx, &e.Kind, &e.Name, &e.ID)
	o.Observe(ctx, e)
}

func begin(ctx context.Context, t Tracer, step EventKind, transport string, rec *Record) (of context.Context) {
	of = ctx // if it panics
	defer contain(ctx, &step, &rec.Name, &rec.ID)
	return t.Begin(ctx, step, transport, rec)
}

// contain logs the panic of an observer. It is to be deferred.
func contain(ctx context.Context, kind *EventKind, name *string, id *MessageID) {
	if v := recover(); v != nil {
		slog.ErrorContext(ctx, "observer panicked", slog.String("event", kind.String()), slog.String("message", *name),
			slog.String("id", id.String()), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
	}
}
