package worker

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
)

// A Store keeps in a database the messages that workers could not handle: those that
// wait for a retry, and the dead letters. Its methods may be called concurrently, and
// their errors wrap waybill.ErrUnavailable while the database cannot be reached.
type Store interface {
	// RetryQueue returns the retry queue of a transport. Each call returns a separate
	// receiver of it.
	RetryQueue(transport string) (RetryQueue, error)
}

// A RetryQueue is a queue in a database, beside the transport of a worker. It has the
// messages that failed there and wait for a retry, those whose worker ended while it
// handled them, and the later messages of their keys. It delivers them as any receiver
// does: a message that waits for a retry, or is parked, holds back the later ones of its
// key. No two of its messages have the same id.
//
// Ack of a message removes its attempts, and its dead letter if it has one: a replay
// that succeeded.
type RetryQueue interface {
	waybill.Receiver

	// Contains reports for each of ds, which are deliveries of another receiver, whether
	// the queue has a message of the same id, or one of the same key.
	Contains(ctx context.Context, ds ...*waybill.Delivery) ([]bool, error)
	// Add stores deliveries of another receiver, in order and in one transaction. The
	// caller acknowledges them afterwards. A message whose id the queue has already is
	// left as it is there.
	Add(ctx context.Context, moves ...Move) error
	// Move settles deliveries of this receiver, in one transaction. It ends the count
	// of Begin. An error wraps waybill.ErrLeaseLost if the lease of at least one has
	// passed to another worker; the others are moved.
	Move(ctx context.Context, moves ...Move) error
	// Begin records that the handlers of d, a redelivered message of this receiver, are
	// about to run. It returns how many leases in a row have ended before while they ran:
	// their process ended first.
	Begin(ctx context.Context, d *waybill.Delivery) (crashes int, err error)
}

// A Move is the next place of a message that was not handled. It goes to the retry
// queue, or with DeadLetters to the dead letters.
type Move struct {
	// Delivery is the message, with the headers to be stored.
	Delivery *waybill.Delivery
	// Attempt is the attempt that failed, which is counted; nil for a message that
	// waits behind another one of its key, or is to run again without a failure.
	Attempt *Attempt
	// Delay is the time until the message, and then its key, is delivered again.
	Delay time.Duration
	// Parked messages, and their keys, are not delivered until an operator releases them.
	Parked bool
	// DeadLetters is the name of the failure transport that receives the message; its
	// key goes on without it. A dead letter of the same transport and id stays one entry,
	// to which the attempts are added.
	DeadLetters string
}

// An Attempt is the record of one failed attempt to handle a message.
type Attempt struct {
	At     time.Time // its end, UTC
	Worker string    // host and process id
	Failure
}

// A Failure is the description of an error.
type Failure struct {
	Handler     string // the handler that failed, or the first of several; empty if none ran
	Type        string // Go types of the error and the errors that it wraps, outermost first
	Error       string // text, with those of the wrapped errors
	Stack       string // of a panic
	Fingerprint string // equal for errors that differ in numbers, ids and times only
}
