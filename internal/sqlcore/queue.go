package sqlcore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/outbox"
)

// A QueueStore is the table of a database's queues. Its errors are translated.
type QueueStore interface {
	// Ready refuses unusable tables.
	Ready(ctx context.Context) error
	// Insert writes rows in one transaction.
	Insert(ctx context.Context, rows []outbox.Row) error
	// Refuses reports whether an error of Insert is the fault of a row.
	Refuses(err error) bool
	// Claim leases up to limit rows to a consumer, in any order. It returns none without a
	// wait if none is due. A claim that has begun to lease rows outlives ctx: no receiver would
	// have its rows until the lease ends.
	Claim(ctx context.Context, to Consumer, limit int) ([]*waybill.Delivery, error)
	// Settle applies a change to the rows that are still leased to a consumer, and returns
	// these.
	Settle(ctx context.Context, by Consumer, c QueueChange, delivered []DeliveredRow) (settled map[DeliveredRow]bool, err error)
}

// A Consumer is a receiver of a queue, as the table records it.
type Consumer struct {
	Queue  string
	Holder uuid.UUID
	Lease  time.Duration
}

// DeliveredRow is the Tag of a delivery: its row, and how often that was leased.
type DeliveredRow struct{ ID, Lease int64 }

// A QueueChange is a change of a delivered row.
type QueueChange struct {
	Verb    string        // "ack", "release", "retry" or "renew", the names of statements
	After   time.Duration // of retry: the delay; of renew: the lease
	Headers string        // of retry: the new headers
}

// A Queue is the receiver and sender of a table's queue. It is safe for concurrent use.
type Queue struct {
	self  Consumer
	store QueueStore
	wakes *Wakes
}

const minLease, defaultLease = 50 * time.Millisecond, 15 * time.Second

// NewQueue returns a receiver of a queue. A lease of zero means the default.
func NewQueue(store QueueStore, wakes *Wakes, name string, lease time.Duration) (*Queue, error) {
	if name == "" || len(name) > 190 {
		return nil, fmt.Errorf("queue name %q: want 1 to 190 bytes", name)
	}
	if lease != 0 && lease < minLease {
		return nil, fmt.Errorf("queue %s: Lease %v is too short to be renewed, want at least %v", name, lease, minLease)
	}
	return &Queue{Consumer{name, uuid.Must(uuid.NewV4()), cmp.Or(lease, defaultLease)}, store, wakes}, nil
}

// Send implements waybill.Sender.
func (q *Queue) Send(ctx context.Context, rec *waybill.Record) error {
	return q.insert(ctx, []outbox.Item{{Record: rec}})
}

// Traits implements outbox.Publisher: a call of Publish is one transaction.
func (q *Queue) Traits() outbox.PublisherTraits { return outbox.PublisherTraits{Atomic: true} }

// Connect implements outbox.Publisher.
func (q *Queue) Connect(context.Context) error { return nil }

// Isolated implements outbox.Publisher.
func (q *Queue) Isolated() outbox.Publisher { return nil }

// Publish implements outbox.Publisher.
func (q *Queue) Publish(ctx context.Context, items []outbox.Item, results chan<- outbox.Result) {
	err := q.insert(ctx, items)
	if err != nil && !q.store.Refuses(err) {
		err = unavailable(err)
	}
	for _, item := range items {
		results <- outbox.Result{Seq: item.Seq, Err: err}
	}
}

// unavailable marks an error that is not a message's fault.
func unavailable(err error) error {
	if errors.Is(err, waybill.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", waybill.ErrUnavailable, err)
}

func (q *Queue) insert(ctx context.Context, items []outbox.Item) error {
	if err := q.store.Ready(ctx); err != nil {
		return unavailable(err)
	}
	rows := make([]outbox.Row, len(items))
	for i, item := range items {
		rows[i] = outbox.Row{Record: item.Record, Queue: q.self.Queue}
	}
	if err := q.store.Insert(ctx, rows); err != nil {
		return fmt.Errorf("queue %s: %w", q.self.Queue, err)
	}
	q.wakes.HintQueue(q.self.Queue)
	return nil
}

// pollMin and pollMax bound the delay between looks at an empty queue.
const pollMin, pollMax = 5 * time.Millisecond, 250 * time.Millisecond

// Receive implements waybill.Receiver. Between looks at an empty queue it waits from 5
// to 250 ms; a commit in this process ends the wait.
func (q *Queue) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	if err := q.store.Ready(ctx); err != nil {
		return nil, err
	}
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		ds, err := q.store.Claim(ctx, q.self, limit)
		if err != nil && !over(ctx) {
			return nil, fmt.Errorf("queue %s: %w", q.self.Queue, err)
		}
		if len(ds) > 0 {
			slices.SortFunc(ds, func(a, b *waybill.Delivery) int { return cmp.Compare(a.Tag.(DeliveredRow).ID, b.Tag.(DeliveredRow).ID) })
			return ds, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-q.wakes.Queue(q.self.Queue):
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// over reports whether ctx has ended. The timer of a dialer may be a moment ahead of the
// context's.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// Ack implements waybill.Receiver.
func (q *Queue) Ack(ctx context.Context, ds ...*waybill.Delivery) error {
	err := q.settle(ctx, QueueChange{Verb: "ack"}, ds)
	q.wakes.HintQueue(q.self.Queue) // the keys' next messages may be delivered now
	return err
}

// Release implements waybill.Receiver.
func (q *Queue) Release(ctx context.Context, ds ...*waybill.Delivery) error {
	err := q.settle(ctx, QueueChange{Verb: "release"}, ds)
	q.wakes.HintQueue(q.self.Queue)
	return err
}

// Retry implements waybill.Receiver.
func (q *Queue) Retry(ctx context.Context, d *waybill.Delivery, delay time.Duration) error {
	meta, err := headers.Encode(d.Record)
	if err != nil {
		return err
	}
	return q.settle(ctx, QueueChange{"retry", delay, meta}, []*waybill.Delivery{d})
}

// LeaseTime implements waybill.Receiver.
func (q *Queue) LeaseTime() time.Duration { return q.self.Lease }

// Renew implements waybill.Receiver.
func (q *Queue) Renew(ctx context.Context, ds ...*waybill.Delivery) ([]*waybill.Delivery, error) {
	lost, err := q.change(ctx, QueueChange{Verb: "renew", After: q.self.Lease}, ds)
	if err != nil {
		return nil, fmt.Errorf("queue %s: renew: %w", q.self.Queue, err)
	}
	return lost, nil
}

func (q *Queue) settle(ctx context.Context, c QueueChange, ds []*waybill.Delivery) error {
	lost, err := q.change(ctx, c, ds)
	if err == nil && len(lost) > 0 {
		err = fmt.Errorf("%d of %d messages, the first %s: %w", len(lost), len(ds), lost[0].Record.ID, waybill.ErrLeaseLost)
	}
	if err != nil {
		return fmt.Errorf("queue %s: %s: %w", q.self.Queue, c.Verb, err)
	}
	return nil
}

// change applies c to deliveries, and returns those whose lease is lost. A row may be
// there twice, with its first lease and with its present one.
func (q *Queue) change(ctx context.Context, c QueueChange, ds []*waybill.Delivery) (lost []*waybill.Delivery, err error) {
	if len(ds) == 0 {
		return nil, nil
	}
	if err := q.store.Ready(ctx); err != nil {
		return nil, err
	}
	delivered := make([]DeliveredRow, len(ds))
	for i, d := range ds {
		tag, ok := d.Tag.(DeliveredRow)
		if !ok {
			return nil, errors.New("the delivery is not of this transport")
		}
		delivered[i] = tag
	}
	settled, err := q.store.Settle(ctx, q.self, c, delivered)
	if err != nil {
		return nil, err
	}
	for i, d := range ds {
		if !settled[delivered[i]] {
			lost = append(lost, d)
		}
	}
	return lost, nil
}
