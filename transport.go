package waybill

import (
	"context"
	"time"
)

// A Sender hands records to one transport. Its methods may be called
// concurrently.
type Sender interface {
	// Send returns nil once the transport has stored rec durably and routed it. An
	// error wraps ErrUnavailable if the transport could not be reached; any other
	// error means that it refused rec. rec is not kept or changed.
	Send(ctx context.Context, rec *Record) error
}

// A Delivery is a record delivered to a worker until it is settled.
type Delivery struct {
	Record *Record
	// Failures is how often handling it has failed before.
	Failures int
	// Redelivered is set if its last holder neither settled nor released it: that process
	// may have ended while it handled the message.
	Redelivered bool
	// Lost is closed when the delivery has gone back to the transport by the end of its
	// connection; nil for a transport with leases. It is to be settled all the same,
	// which then has no effect on the message.
	Lost <-chan struct{}
	// Tag belongs to the transport; a worker only passes it back.
	Tag any
}

// A Receiver delivers the messages of one transport to workers. Deliveries with
// an equal key are delivered in order; while one of them is not settled, no further
// call of Receive, on this or another receiver of the same transport, returns
// a later one. Its methods may be called concurrently. An error that wraps
// ErrUnavailable means that the transport could not be reached: a worker calls again.
type Receiver interface {
	// Receive waits for messages and returns between 1 and max of them, or an
	// error: ctx's when it ended, which wraps ErrUnavailable, too, if the transport was
	// not read before.
	Receive(ctx context.Context, max int) ([]*Delivery, error)
	// Ack acknowledges ds as handled. An error wraps ErrLeaseLost if the lease of at
	// least one had passed to another worker; the rest is acknowledged.
	Ack(ctx context.Context, ds ...*Delivery) error
	// Retry gives d back after a failure, which is counted and stored with the
	// changes made to d.Record.Headers. d comes again after delay, and messages
	// of its key wait behind it.
	Retry(ctx context.Context, d *Delivery, delay time.Duration) error
	// Release gives ds back unhandled, to come again at once, in order.
	Release(ctx context.Context, ds ...*Delivery) error
	// LeaseTime is how long a delivery may go without being renewed, before it returns
	// to the transport. It is constant. Zero means that a delivery belongs to the
	// connection, and Renew is not called.
	LeaseTime() time.Duration
	// Renew extends the leases of ds and returns the deliveries whose lease is lost.
	Renew(ctx context.Context, ds ...*Delivery) (lost []*Delivery, err error)
	// Suspend gives back the messages that a broker has sent ahead and that are not settled. No
	// further ones arrive before the next call of Receive. It is not called while Receive runs.
	Suspend(ctx context.Context) error
}
