package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// defaultLease is how long a delivery may go without being renewed.
const defaultLease = 15 * time.Second

// A Queue is a transport kept in a DB. It sends, publishes for a relay and
// receives. A key's messages are delivered to one receiver at a time, in order, and
// no more of them before those are settled.
type Queue struct {
	db    *DB
	name  string
	lease time.Duration
	*queue
}

var (
	_ waybill.Sender   = (*Queue)(nil)
	_ waybill.Receiver = (*Queue)(nil)
	_ outbox.Publisher = (*Queue)(nil)
)

// queue is the state shared by the receivers of one queue. DB.mu guards it.
type queue struct {
	messages []*message // by id
	sent     []*waybill.Record
	changed  chan struct{} // closed at the next change
}

// A message is held until a time: by a receiver, or without a holder while it waits
// for a retry. lease counts its deliveries, so that an old one cannot settle it.
type message struct {
	id       int64
	record   *waybill.Record
	failures int
	until    time.Time
	holder   *Queue
	lease    int64

	redelivered bool  // its last holder neither settled nor released it
	begun       int64 // of a retry queue: the last lease under which handlers began
	crashes     int   // the leases under which they began and did not end
}

// tag is the Tag of a Delivery of this transport.
type tag struct{ id, lease int64 }

// Queue returns the queue of that name. Each call returns a separate receiver.
func (db *DB) Queue(name string) *Queue { return db.receiver(name, defaultLease) }

func (db *DB) receiver(name string, lease time.Duration) *Queue {
	db.mu.Lock()
	defer db.mu.Unlock()
	return &Queue{db, name, lease, db.queue(name)}
}

// queue returns the shared state of a queue. The caller holds mu.
func (db *DB) queue(name string) *queue {
	q, ok := db.queues[name]
	if !ok {
		q = &queue{changed: make(chan struct{})}
		db.queues[name] = q
	}
	return q
}

func (q *queue) add(id int64, rec *waybill.Record) {
	q.messages = append(q.messages, &message{id: id, record: rec})
	q.sent = append(q.sent, clone(rec))
	q.wake()
}

// wake makes every waiting Receive check the queue again.
func (q *queue) wake() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// Sent returns every record that entered the queue so far, oldest first, handled
// ones included.
func (q *Queue) Sent() []*waybill.Record {
	q.db.mu.Lock()
	defer q.db.mu.Unlock()
	q.db.moveDue(time.Now())
	recs := make([]*waybill.Record, len(q.sent))
	for i, rec := range q.sent {
		recs[i] = clone(rec)
	}
	return recs
}

// Len returns how many messages are in the queue, delivered ones and ones that wait
// for a retry included.
func (q *Queue) Len() int {
	q.db.mu.Lock()
	defer q.db.mu.Unlock()
	q.db.moveDue(time.Now())
	return len(q.messages)
}

// Send implements waybill.Sender.
func (q *Queue) Send(ctx context.Context, rec *waybill.Record) error {
	return q.store(ctx, []outbox.Item{{Record: rec}})
}

// Traits implements outbox.Publisher.
func (q *Queue) Traits() outbox.PublisherTraits { return outbox.PublisherTraits{Atomic: true} }

// Connect implements outbox.Publisher.
func (q *Queue) Connect(context.Context) error { return nil }

// Isolated implements outbox.Publisher.
func (q *Queue) Isolated() outbox.Publisher { return nil }

// Publish implements outbox.Publisher.
func (q *Queue) Publish(ctx context.Context, items []outbox.Item, results chan<- outbox.Result) {
	err := q.store(ctx, items)
	for _, item := range items {
		results <- outbox.Result{Seq: item.Seq, Err: err}
	}
}

func (q *Queue) store(ctx context.Context, items []outbox.Item) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("queue %s: %w: %w", q.name, waybill.ErrUnavailable, err)
	}
	q.db.mu.Lock()
	defer q.db.mu.Unlock()
	for _, item := range items {
		q.db.insert(outbox.Row{Record: clone(item.Record), Queue: q.name})
	}
	return nil
}

// Receive implements waybill.Receiver.
func (q *Queue) Receive(ctx context.Context, max int) ([]*waybill.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("queue %s: receive of at most %d messages", q.name, max)
	}
	for ctx.Err() == nil {
		delivered, changed, next := q.claim(time.Now(), max)
		if len(delivered) > 0 {
			return delivered, nil
		}
		var due <-chan time.Time
		if !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-due:
		}
	}
	return nil, ctx.Err()
}

// claim leases up to max messages, oldest first. It skips keys with a leased message,
// or a head that waits for a retry, to keep their order. Without a message it returns
// a channel closed at the next change, and the time of the next due message.
func (q *Queue) claim(now time.Time, max int) (delivered []*waybill.Delivery, changed <-chan struct{}, next time.Time) {
	q.db.mu.Lock()
	defer q.db.mu.Unlock()
	q.db.moveDue(now)
	busy := map[string]bool{}
	for _, m := range q.messages {
		if m.until.After(now) {
			next = sooner(next, m.until)
			busy[m.record.Key] = m.record.Key != ""
		}
	}
	for _, d := range q.db.delayed {
		if d.row.Queue == q.name {
			next = sooner(next, d.due)
		}
	}
	for _, m := range q.messages {
		if len(delivered) == max {
			break
		}
		if !m.until.After(now) && !busy[m.record.Key] {
			m.redelivered = m.holder != nil
			m.until, m.holder, m.lease = now.Add(q.lease), q, m.lease+1
			delivered = append(delivered, &waybill.Delivery{Record: clone(m.record), Failures: m.failures, Redelivered: m.redelivered, Tag: tag{m.id, m.lease}})
		}
	}
	return delivered, q.changed, next
}

// sooner returns the earlier of two times; a zero a is ignored.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// Ack implements waybill.Receiver.
func (q *Queue) Ack(_ context.Context, ds ...*waybill.Delivery) error {
	return q.settle("ack", ds, func(m *message, _ *waybill.Delivery) {
		q.messages = slices.DeleteFunc(q.messages, func(other *message) bool { return other == m })
	})
}

// Retry implements waybill.Receiver.
func (q *Queue) Retry(_ context.Context, d *waybill.Delivery, delay time.Duration) error {
	return q.settle("retry", []*waybill.Delivery{d}, func(m *message, d *waybill.Delivery) {
		m.failures++
		m.record.Headers = maps.Clone(d.Record.Headers)
		m.until, m.holder = time.Now().Add(delay), nil
	})
}

// Release implements waybill.Receiver.
func (q *Queue) Release(_ context.Context, ds ...*waybill.Delivery) error {
	return q.settle("release", ds, func(m *message, _ *waybill.Delivery) {
		m.until, m.holder = time.Time{}, nil
	})
}

// Suspend implements waybill.Receiver: nothing is sent ahead.
func (q *Queue) Suspend(context.Context) error { return nil }

// LeaseTime implements waybill.Receiver.
func (q *Queue) LeaseTime() time.Duration { return q.lease }

// Renew implements waybill.Receiver.
func (q *Queue) Renew(_ context.Context, ds ...*waybill.Delivery) ([]*waybill.Delivery, error) {
	return q.each(ds, func(m *message, _ *waybill.Delivery) { m.until = time.Now().Add(q.lease) })
}

func (q *Queue) settle(verb string, ds []*waybill.Delivery, do func(*message, *waybill.Delivery)) error {
	lost, err := q.each(ds, do)
	if err == nil && len(lost) > 0 {
		err = fmt.Errorf("%d of %d messages, the first %s: %w", len(lost), len(ds), lost[0].Record.ID, waybill.ErrLeaseLost)
	}
	if err != nil {
		return fmt.Errorf("queue %s: %s: %w", q.name, verb, err)
	}
	return nil
}

// each calls do for the deliveries of ds that this receiver still holds, and returns
// the rest.
func (q *Queue) each(ds []*waybill.Delivery, do func(*message, *waybill.Delivery)) (lost []*waybill.Delivery, err error) {
	for _, d := range ds {
		if _, ok := d.Tag.(tag); !ok {
			return nil, errors.New("the delivery is not of this transport")
		}
	}
	q.db.mu.Lock()
	defer q.db.mu.Unlock()
	for _, d := range ds {
		t := d.Tag.(tag)
		i, ok := slices.BinarySearchFunc(q.messages, t.id, func(m *message, id int64) int { return cmp.Compare(m.id, id) })
		if !ok || q.messages[i].holder != q || q.messages[i].lease != t.lease {
			lost = append(lost, d)
			continue
		}
		do(q.messages[i], d)
	}
	q.wake()
	return lost, nil
}
