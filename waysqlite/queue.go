package waysqlite

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/outbox"
)

// QueueConfig tunes a Queue. The zero value is fit for production.
type QueueConfig struct {
	// Lease is how long a delivery is lent before it must be renewed; zero means
	// 15 s, less than 50 ms is refused. The messages of a receiver that died come again after that.
	Lease time.Duration
}

const minLease = 50 * time.Millisecond

// A Queue is a transport kept in a table: queue://NAME. It sends, publishes for
// a relay and receives; any number of processes may. A key's messages are lent
// to one receiver at a time, in order, and no more of them before those are
// settled.
type Queue struct {
	db     *DB
	name   string
	lease  time.Duration
	holder []byte // this receiver, in the table
}

var (
	_ waybill.Sender         = (*Queue)(nil)
	_ waybill.Receiver       = (*Queue)(nil)
	_ waybill.Leaser         = (*Queue)(nil)
	_ outbox.AtomicPublisher = (*Queue)(nil)
)

// Queue returns the queue of that name. Each call returns a receiver of its own.
func (db *DB) Queue(name string, cfg QueueConfig) (*Queue, error) {
	if name == "" || len(name) > 190 {
		return nil, fmt.Errorf("waysqlite: queue name %q: want 1 to 190 bytes", name)
	}
	if cfg.Lease != 0 && cfg.Lease < minLease {
		return nil, fmt.Errorf("waysqlite: queue %s: Lease %v is too short to be renewed, want at least %v", name, cfg.Lease, minLease)
	}
	q := &Queue{db: db, name: name, lease: cmp.Or(cfg.Lease, 15*time.Second), holder: make([]byte, 16)}
	_, _ = rand.Read(q.holder) // never fails
	return q, nil
}

// Send implements waybill.Sender.
func (q *Queue) Send(ctx context.Context, rec *waybill.Record) error {
	return q.store(ctx, []outbox.Item{{Record: rec}})
}

// PublishesAtomically implements outbox.AtomicPublisher: a call is one
// transaction.
func (q *Queue) PublishesAtomically() {}

// Publish implements outbox.Publisher.
func (q *Queue) Publish(ctx context.Context, items []outbox.Item, results chan<- outbox.Result) {
	err := q.store(ctx, items)
	if err != nil && !refusesRecord(err) {
		err = fmt.Errorf("%w: %w", waybill.ErrUnavailable, err) // no message's fault
	}
	for _, item := range items {
		results <- outbox.Result{Seq: item.Seq, Err: err}
	}
}

func (q *Queue) store(ctx context.Context, items []outbox.Item) error {
	if err := q.db.checkSchema(ctx); err != nil {
		return fmt.Errorf("%w: %w", waybill.ErrUnavailable, err) // no message's fault
	}
	rows := make([]outbox.Row, len(items))
	for i, item := range items {
		rows[i] = outbox.Row{Record: item.Record, Queue: q.name}
	}
	err := q.db.write(ctx, func(tx *txn) error { return q.db.insert(ctx, tx, rows) })
	if err != nil {
		return fmt.Errorf("queue %s: %w", q.name, err)
	}
	q.db.hint("queue " + q.name)
	return nil
}

// pollMin and pollMax bound the pause between looks at an empty queue.
const pollMin, pollMax = 5 * time.Millisecond, 250 * time.Millisecond

// tag is what a Delivery carries for this transport.
type tag struct{ id, lease int64 }

// Receive implements waybill.Receiver. Between looks at an empty queue it waits
// from 5 to 250 ms; a commit in this process ends the wait.
func (q *Queue) Receive(ctx context.Context, max int) ([]*waybill.Delivery, error) {
	if err := q.db.checkSchema(ctx); err != nil {
		return nil, err
	}
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		ds, err := q.claim(ctx, max)
		if err != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("queue %s: %w", q.name, err)
		}
		if len(ds) > 0 {
			return ds, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-q.db.wake("queue " + q.name):
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

func (q *Queue) claim(ctx context.Context, max int) ([]*waybill.Delivery, error) {
	if err := q.db.promote(ctx); err != nil {
		return nil, err
	}
	var now int64
	if err := q.db.reader.QueryRowContext(ctx, q.db.outboxSQL.Query("now")).Scan(&now); err != nil {
		return nil, translate(err)
	}
	var any bool
	if err := q.db.reader.QueryRowContext(ctx, q.db.queueSQL.Query("any"), q.name, now).Scan(&any); err != nil || !any {
		return nil, translate(err)
	}
	var lent []*waybill.Delivery
	err := q.db.write(ctx, func(tx *txn) (err error) {
		// A claim that began is not cut off: what it lent would be nobody's until
		// the lease ends.
		ctx := context.WithoutCancel(ctx)
		// The clock again: the write lock may have been a while in coming.
		if err := tx.QueryRowContext(ctx, q.db.outboxSQL.Query("now")).Scan(&now); err != nil {
			return err
		}
		lent, err = q.lend(ctx, tx.Tx, now, max)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(lent, func(a, b *waybill.Delivery) int { return cmp.Compare(a.Tag.(tag).id, b.Tag.(tag).id) })
	return lent, nil
}

func (q *Queue) lend(ctx context.Context, tx *sql.Tx, now int64, max int) ([]*waybill.Delivery, error) {
	rows, err := tx.QueryContext(ctx, q.db.queueSQL.Query("claim"), q.name, now, q.holder, now+q.lease.Microseconds(), max)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var lent []*waybill.Delivery
	for rows.Next() {
		d := &waybill.Delivery{Record: &waybill.Record{}}
		rec := d.Record
		var t tag
		var meta string
		var created int64
		if err := rows.Scan(&t.id, &rec.ID, &rec.Name, &rec.Key, &meta, &rec.Body, &created, &d.Failures, &t.lease); err != nil {
			return nil, err
		}
		rec.DispatchedAt = micros(created)
		rec.Problem = headers.Decode(rec, meta)
		d.Tag = t
		lent = append(lent, d)
	}
	return lent, rows.Err()
}

// Ack implements waybill.Receiver.
func (q *Queue) Ack(ctx context.Context, ds ...*waybill.Delivery) error {
	err := q.settle(ctx, "ack", ds)
	q.db.hint("queue " + q.name) // the keys' next messages may be lent now
	return err
}

// Release implements waybill.Receiver.
func (q *Queue) Release(ctx context.Context, ds ...*waybill.Delivery) error {
	err := q.settle(ctx, "release", ds)
	q.db.hint("queue " + q.name)
	return err
}

// Retry implements waybill.Receiver.
func (q *Queue) Retry(ctx context.Context, d *waybill.Delivery, delay time.Duration) error {
	meta, err := headers.Encode(d.Record)
	if err != nil {
		return err
	}
	return q.settle(ctx, "retry", []*waybill.Delivery{d}, delay.Microseconds(), meta)
}

// LeaseTime implements waybill.Leaser.
func (q *Queue) LeaseTime() time.Duration { return q.lease }

// Renew implements waybill.Leaser.
func (q *Queue) Renew(ctx context.Context, ds ...*waybill.Delivery) ([]*waybill.Delivery, error) {
	lost, err := q.each(ctx, "renew", ds, q.lease.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("queue %s: renew: %w", q.name, err)
	}
	return lost, nil
}

func (q *Queue) settle(ctx context.Context, verb string, ds []*waybill.Delivery, args ...any) error {
	lost, err := q.each(ctx, verb, ds, args...)
	if err == nil && len(lost) > 0 {
		err = fmt.Errorf("%d of %d messages, the first %s: %w", len(lost), len(ds), lost[0].Record.ID, waybill.ErrLeaseLost)
	}
	if err != nil {
		return fmt.Errorf("queue %s: %s: %w", q.name, verb, err)
	}
	return nil
}

// each runs a statement for every delivery in one transaction and returns those
// whose lease is lost.
func (q *Queue) each(ctx context.Context, verb string, ds []*waybill.Delivery, args ...any) ([]*waybill.Delivery, error) {
	var lost []*waybill.Delivery
	err := q.db.write(ctx, func(tx *txn) error {
		for _, d := range ds {
			t, ok := d.Tag.(tag)
			if !ok {
				return errors.New("the delivery is not of this transport")
			}
			n, err := tx.exec(ctx, q.db.queueSQL.Query(verb), append([]any{t.id, q.holder, t.lease}, args...)...)
			if err != nil {
				return err
			}
			if n == 0 {
				lost = append(lost, d)
			}
		}
		return nil
	})
	return lost, err
}
