package sqlcore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/outbox"
)

// A QueueStore is the table of a database's queues. Its errors are translated.
type QueueStore interface {
	ReceiverStore
	// Insert writes rows in one transaction.
	Insert(ctx context.Context, rows []outbox.Row) error
	// Refuses reports whether an error of Insert is the fault of a row.
	Refuses(err error) bool
}

// A ReceiverStore is a table with rows for receivers. Its errors are translated.
type ReceiverStore interface {
	// Ready refuses unusable tables.
	Ready(ctx context.Context) error
	// Any reports whether a claim may find rows. Before that it promotes delayed messages.
	Any(ctx context.Context, queue string) (bool, error)
	// Claim runs fn in a transaction. See ClaimContext.
	Claim(ctx context.Context, to Consumer, fn func(context.Context, QueueClaim) error) error
	// Settle applies a change to the rows that are still leased to a consumer, and returns
	// these. It locks rows in ascending order. An acknowledgement makes the oldest row set aside of
	// each key claimable, unless the key has other rows in flight.
	Settle(ctx context.Context, by Consumer, c QueueChange, delivered []DeliveredRow) (settled map[DeliveredRow]bool, err error)
}

// A Consumer is a receiver of a queue, as the table records it.
type Consumer struct {
	Queue  string
	Turn   string // of claims: those of one turn wait for each other
	Holder uuid.UUID
	Lease  time.Duration
}

// DeliveredRow is the Tag of a delivery: its row, and how often that was leased.
type DeliveredRow struct {
	ID, Lease int64
	Key       string
}

// A QueueChange is a change of a delivered row.
type QueueChange struct {
	Verb    string        // "ack", "release", "retry" or "renew", the names of statements
	After   time.Duration // of retry: the delay; of renew: the lease
	Headers string        // of retry: the new headers
}

// A Queue is the receiver and sender of a table's queue. It is safe for concurrent use.
type Queue struct {
	*receiver
	store QueueStore
}

// A receiver implements waybill.Receiver for a queue or a retry queue.
type receiver struct {
	self  Consumer
	store ReceiverStore
	wakes *Wakes
	// looked is when the claims that have found rows since began with a look, in Unix
	// nanoseconds; 0 after a claim without rows.
	looked atomic.Int64
	next   atomic.Int64 // the end of the last claimGap, in Unix nanoseconds
}

const minLease, defaultLease = 50 * time.Millisecond, 15 * time.Second

// NewQueue returns a receiver of a queue. A lease of zero means the default.
func NewQueue(store QueueStore, wakes *Wakes, name string, lease time.Duration) (*Queue, error) {
	r, err := newReceiver(store, wakes, name, "queue "+name, lease)
	if err != nil {
		return nil, err
	}
	return &Queue{r, store}, nil
}

func newReceiver(store ReceiverStore, wakes *Wakes, name, turn string, lease time.Duration) (*receiver, error) {
	if name == "" || len(name) > 190 {
		return nil, fmt.Errorf("queue name %q: want 1 to 190 bytes", name)
	}
	if lease != 0 && lease < minLease {
		return nil, fmt.Errorf("queue %s: Lease %v is too short to be renewed, want at least %v", name, lease, minLease)
	}
	return &receiver{self: Consumer{name, turn, uuid.Must(uuid.NewV4()), cmp.Or(lease, defaultLease)}, store: store, wakes: wakes}, nil
}

// Send implements waybill.Sender.
func (q *Queue) Send(ctx context.Context, rec *waybill.Record) error {
	return q.insert(ctx, []outbox.Item{{Record: rec}})
}

// Traits implements outbox.Publisher: a call of Publish is one transaction.
func (q *Queue) Traits() outbox.PublisherTraits {
	return outbox.PublisherTraits{Atomic: true, To: []slog.Attr{slog.String("queue", q.self.Queue)}}
}

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

// claimGap is the time from a claim that has found n rows, fewer than its limit, to the next one:
// the more messages come, the more of them are claimed together.
func claimGap(n int) time.Duration { return min(max(time.Duration(n), 2), 10) * time.Millisecond }

// Receive implements waybill.Receiver. Between looks at an empty queue it waits from 5
// to 250 ms; a commit in this process ends the wait. When ctx ends before the first look
// is done, the error wraps waybill.ErrUnavailable, too.
func (q *receiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	looked, wake := false, make(chan struct{})
	for pause := min(claimGap(limit), time.Until(time.Unix(0, q.next.Load()))); ; pause = min(max(2*pause, pollMin), pollMax) {
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		case <-wake:
		}
		if err := ctx.Err(); err != nil && !looked {
			return nil, fmt.Errorf("queue %s: not read in time: %w: %w", q.self.Queue, waybill.ErrUnavailable, err)
		} else if err != nil {
			return nil, err
		}
		began := time.Now()
		ds, err := q.claim(ctx, limit)
		if err != nil && !over(ctx) {
			return nil, fmt.Errorf("queue %s: %w", q.self.Queue, err)
		}
		if len(ds) < limit {
			q.next.Store(began.Add(claimGap(len(ds))).UnixNano())
		}
		if len(ds) > 0 {
			return ds, nil
		}
		looked, wake = looked || err == nil, q.wakes.Queue(q.self.Queue)
	}
}

// firstWindow and nextWindow are how many claimable rows a claim reads beyond twice its
// limit: the first, and one after a claim that has set all of its rows aside.
const firstWindow, nextWindow = 20, 1000

// lookEvery is how long claims that find rows do without a look. Looks also promote delayed
// messages. lookTimeout ends one on a server that has vanished, long before TCP does.
const lookEvery, lookTimeout = 20 * time.Millisecond, 10 * time.Second

// look reports whether a claim may find rows: if the last one has, without asking.
func (q *receiver) look(ctx context.Context) (bool, error) {
	now := time.Now()
	if since := now.Sub(time.Unix(0, q.looked.Load())); 0 <= since && since < lookEvery { // the clock may go back
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := q.store.Any(ctx, q.self.Queue)
	q.looked.Store(now.UnixNano())
	return found, err
}

// claim leases up to limit rows, in ascending order, or none if none is due.
func (q *receiver) claim(ctx context.Context, limit int) (ds []*waybill.Delivery, err error) {
	if limit < 1 {
		return nil, fmt.Errorf("receive of at most %d messages", limit)
	}
	if err := q.store.Ready(ctx); err != nil {
		return nil, err
	}
	more := true
	for window := 2*limit + firstWindow; more && len(ds) == 0; window = 2*limit + nextWindow {
		if found, err := q.look(ctx); err != nil || !found {
			q.looked.Store(0)
			return nil, err
		}
		if err := q.store.Claim(ctx, q.self, func(ctx context.Context, c QueueClaim) (err error) {
			ds, more, err = claimRows(ctx, c, limit, window)
			return err
		}); err != nil {
			return nil, err
		}
		if len(ds) == 0 {
			q.looked.Store(0)
		}
	}
	slices.SortFunc(ds, func(a, b *waybill.Delivery) int { return cmp.Compare(a.Tag.(DeliveredRow).ID, b.Tag.(DeliveredRow).ID) })
	return ds, nil
}

// over reports whether ctx has ended. The timer of a dialer may be a moment ahead of the
// context's.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// Ack implements waybill.Receiver.
func (q *receiver) Ack(ctx context.Context, ds ...*waybill.Delivery) error {
	err := q.settle(ctx, QueueChange{Verb: "ack"}, ds)
	q.wakes.HintQueue(q.self.Queue) // the keys' next messages may be delivered now
	return err
}

// Release implements waybill.Receiver.
func (q *receiver) Release(ctx context.Context, ds ...*waybill.Delivery) error {
	err := q.settle(ctx, QueueChange{Verb: "release"}, ds)
	q.wakes.HintQueue(q.self.Queue)
	return err
}

// Retry implements waybill.Receiver.
func (q *receiver) Retry(ctx context.Context, d *waybill.Delivery, delay time.Duration) error {
	meta, err := headers.Encode(d.Record)
	if err != nil {
		return err
	}
	return q.settle(ctx, QueueChange{"retry", delay, meta}, []*waybill.Delivery{d})
}

// Suspend implements waybill.Receiver: nothing is sent ahead.
func (q *receiver) Suspend(context.Context) error { return nil }

// LeaseTime implements waybill.Receiver.
func (q *receiver) LeaseTime() time.Duration { return q.self.Lease }

// Renew implements waybill.Receiver.
func (q *receiver) Renew(ctx context.Context, ds ...*waybill.Delivery) ([]*waybill.Delivery, error) {
	lost, err := q.change(ctx, QueueChange{Verb: "renew", After: q.self.Lease}, ds)
	if err != nil {
		return nil, fmt.Errorf("queue %s: renew: %w", q.self.Queue, err)
	}
	return lost, nil
}

func (q *receiver) settle(ctx context.Context, c QueueChange, ds []*waybill.Delivery) error {
	lost, err := q.change(ctx, c, ds)
	return q.outcome(c.Verb, len(ds), lost, err)
}

// outcome is the error of settling n deliveries of which some were lost.
func (q *receiver) outcome(verb string, n int, lost []*waybill.Delivery, err error) error {
	if err == nil && len(lost) > 0 {
		err = fmt.Errorf("%d of %d messages, the first %s: %w", len(lost), n, lost[0].Record.ID, waybill.ErrLeaseLost)
	}
	if err != nil {
		return fmt.Errorf("queue %s: %s: %w", q.self.Queue, verb, err)
	}
	return nil
}

// change applies c to deliveries, and returns those whose lease is lost.
func (q *receiver) change(ctx context.Context, c QueueChange, ds []*waybill.Delivery) (lost []*waybill.Delivery, err error) {
	return q.apply(ctx, ds, func(delivered []DeliveredRow) (map[DeliveredRow]bool, error) {
		return q.store.Settle(ctx, q.self, c, delivered)
	})
}

// apply runs fn on the rows of deliveries, and returns those that it does not return: their
// lease is lost. A row may be there twice, with its first lease and with its present one.
func (q *receiver) apply(ctx context.Context, ds []*waybill.Delivery, fn func([]DeliveredRow) (map[DeliveredRow]bool, error)) (lost []*waybill.Delivery, err error) {
	if len(ds) == 0 {
		return nil, nil
	}
	if err := q.store.Ready(ctx); err != nil {
		return nil, err
	}
	delivered := make([]DeliveredRow, len(ds))
	for i, d := range ds {
		if delivered[i], err = tagOf(d); err != nil {
			return nil, err
		}
	}
	settled, err := fn(delivered)
	for i, d := range ds {
		if err == nil && !settled[delivered[i]] {
			lost = append(lost, d)
		}
	}
	return lost, err
}

func tagOf(d *waybill.Delivery) (DeliveredRow, error) {
	tag, ok := d.Tag.(DeliveredRow)
	if !ok {
		return tag, errors.New("the delivery is not of this transport")
	}
	return tag, nil
}
