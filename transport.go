package waybill

import (
	"context"
	"time"
)

// A Sender hands records to one transport. Its methods may be called
// concurrently.
type Sender interface {
	// Send returns nil once the transport has stored rec durably and routed it.
	// An error that wraps ErrUnavailable says that the transport could not be
	// reached; any other that it refused rec. rec is not kept or changed.
	Send(ctx context.Context, rec *Record) error
}

// A Delivery is a record lent to a worker until it is settled.
type Delivery struct {
	Record *Record
	// Failures is how often handling it has failed before.
	Failures int
	// Tag is the transport's own; a worker only passes it back.
	Tag any
}

// A Receiver lends the messages of one transport to workers. Deliveries with
// an equal key are lent in order; while one of them is not settled, no further
// call of Receive, on this or another receiver of the same transport, returns
// a later one. Its methods may be called concurrently.
type Receiver interface {
	// Receive waits for messages and returns between 1 and max of them, or an
	// error: ctx's when it ended.
	Receive(ctx context.Context, max int) ([]*Delivery, error)
	// Ack ends ds: they are handled. An error that wraps ErrLeaseLost says that
	// at least one had been lent to somebody else meanwhile; the others are ended.
	Ack(ctx context.Context, ds ...*Delivery) error
	// Retry gives d back after a failure, which is counted and stored with the
	// changes made to d.Record.Headers. d comes again after delay, and messages
	// of its key wait behind it.
	Retry(ctx context.Context, d *Delivery, delay time.Duration) error
	// Release gives ds back unhandled, to come again at once, in order.
	Release(ctx context.Context, ds ...*Delivery) error
}

// A Leaser is a Receiver whose deliveries return to the transport unless they
// are renewed.
type Leaser interface {
	// LeaseTime is how long a delivery may go without being renewed.
	LeaseTime() time.Duration
	// Renew extends ds and returns those that are lost.
	Renew(ctx context.Context, ds ...*Delivery) (lost []*Delivery, err error)
}
