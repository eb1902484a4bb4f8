package waybill

import (
	"context"
	"time"
)

// An Observer is told what happens, for logs, metrics and traces. Observe is
// called concurrently on the path of every message: it must be quick and must
// not keep the event's error beyond the call.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// EventKind says what happened.
type EventKind uint8

// The kinds of events. Which fields of an Event are set follows each.
const (
	Dispatched    EventKind = iota + 1 // a message was written to an outbox or sent: ID, Name, Key, Transport
	Published                          // a relay's message was confirmed: ID, Name, Key, Transport, Duration since its dispatch
	PublishFailed                      // it was refused: ID, Name, Key, Transport, Err
	KeyBlocked                         // a key's head keeps failing: ID, Name, Key, Transport, Failures, Delay, Err
	KeyReleased                        // a blocked key's head was published: ID, Name, Key, Transport
	KeyParked                          // its key, or the rows of it that were there, went to the failure store: ID, Name, Key, Transport, Failures, Err
	Skipped                            // it went to the failure store, and its key goes on: ID, Name, Key, Transport, Failures, Err
	Handled                            // handlers ran: ID, Name, Key, Transport, Failures, Duration, Err
	Duplicate                          // an inbox had seen it: ID, Name, Key, Handler
	Retrying                           // it will be tried again: ID, Name, Key, Transport, Failures, Delay, Err
	LeaseLost                          // it was given to another worker: ID, Name, Key, Transport
)

// String returns the kind in the words of the documentation.
func (k EventKind) String() string {
	names := [...]string{"", "dispatched", "published", "publish failed", "key blocked", "key released", "key parked", "skipped", "handled", "duplicate", "retrying", "lease lost"}
	if int(k) < len(names) {
		return names[k]
	}
	return ""
}

// An Event is one thing that happened.
type Event struct {
	Kind      EventKind
	ID        MessageID
	Name      string
	Key       string
	Transport string
	Handler   string
	Failures  int
	Duration  time.Duration
	Delay     time.Duration
	Err       error
}

// Observers tells each of its members.
type Observers []Observer

// Observe calls each member in turn.
func (os Observers) Observe(ctx context.Context, e Event) {
	for _, o := range os {
		o.Observe(ctx, e)
	}
}
