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
	defer func() {
		if v := recover(); v != nil {
			slog.ErrorContext(ctx, "observer panicked", slog.String("event", e.Kind.String()), slog.String("message", e.Name),
				slog.String("id", e.ID.String()), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		}
	}()
	o.Observe(ctx, e)
}
