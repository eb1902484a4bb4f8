package waypg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gofrs/uuid/v5"
	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/outbox"
)

// QueueConfig tunes a Queue. The zero value is fit for production.
type QueueConfig struct {
	// Lease is how long a delivery is lent before it must be renewed; zero means
	// 15 s, less than 50 ms is refused. The messages of a receiver that died come
	// again after that.
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
	holder string // this receiver, in the table
}

var (
	_ waybill.Receiver       = (*Queue)(nil)
	_ waybill.Leaser         = (*Queue)(nil)
	_ outbox.AtomicPublisher = (*Queue)(nil)
)

// Queue returns the queue of that name. Each call returns a receiver of its own.
func (db *DB) Queue(name string, cfg QueueConfig) (*Queue, error) {
	if name == "" || len(name) > 190 {
		return nil, fmt.Errorf("waypg: queue name %q: want 1 to 190 bytes", name)
	}
	if cfg.Lease != 0 && cfg.Lease < minLease {
		return nil, fmt.Errorf("waypg: queue %s: Lease %v is too short to be renewed, want at least %v", name, cfg.Lease, minLease)
	}
	return &Queue{db: db, name: name, lease: cmp.Or(cfg.Lease, 15*time.Second), holder: uuid.Must(uuid.NewV4()).String()}, nil
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
	if err != nil && !refusesRecord(err) && !errors.Is(err, waybill.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", waybill.ErrUnavailable, err) // no message's fault
	}
	for _, item := range items {
		results <- outbox.Result{Seq: item.Seq, Err: err}
	}
}

func (q *Queue) store(ctx context.Context, items []outbox.Item) error {
	rows := make([]outbox.Row, len(items))
	for i, item := range items {
		rows[i] = outbox.Row{Record: item.Record, Queue: q.name}
	}
	p, err := q.db.ready(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", waybill.ErrUnavailable, err) // no message's fault
	}
	batch := &pgx.Batch{}
	if err := q.db.queueInserts(p, batch, rows); err != nil {
		return err
	}
	// One batch is one transaction, and its locks end with it.
	if err := q.db.pool.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("queue %s: %w", q.name, translate(err))
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
	p, err := q.db.ready(ctx)
	if err != nil {
		return nil, err
	}
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		ds, err := q.claim(ctx, p, max)
		if err != nil && !over(ctx) {
			return nil, fmt.Errorf("queue %s: %w", q.name, translate(err))
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

// over reports whether ctx has ended. The timer of a dialer may be a moment ahead
// of the context's.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

func (q *Queue) claim(ctx context.Context, p *place, max int) ([]*waybill.Delivery, error) {
	if err := q.db.promoteDue(ctx, p); err != nil {
		return nil, err
	}
	var found bool
	if err := q.db.pool.QueryRow(ctx, p.queue.Query("any"), q.name).Scan(&found); err != nil || !found {
		return nil, err
	}
	var lent []*waybill.Delivery
	// A claim that began is not cut off: what it lent would be nobody's until the
	// lease ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.lease)
	defer cancel()
	err := pgx.BeginTxFunc(ctx, q.db.pool, readCommitted, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, p.queue.Query("one_claimer"), p.namespace, q.name); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, p.queue.Query("claim"), q.name, q.holder, q.lease.Seconds(), max)
		if err != nil {
			return err
		}
		lent, err = pgx.CollectRows(rows, toDelivery)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(lent, func(a, b *waybill.Delivery) int { return cmp.Compare(a.Tag.(tag).id, b.Tag.(tag).id) })
	return lent, nil
}

func toDelivery(row pgx.CollectableRow) (*waybill.Delivery, error) {
	rec := &waybill.Record{}
	d := &waybill.Delivery{Record: rec}
	var t tag
	var meta string
	var id [16]byte
	if err := row.Scan(&t.id, &id, &rec.Name, &rec.Key, &meta, &rec.Body, &rec.DispatchedAt, &d.Failures, &t.lease); err != nil {
		return nil, err
	}
	rec.ID, rec.DispatchedAt = id, rec.DispatchedAt.UTC()
	rec.Problem = headers.Decode(rec, meta)
	d.Tag = t
	return d, nil
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
	return q.settle(ctx, "retry", []*waybill.Delivery{d}, delay.Seconds(), meta)
}

// LeaseTime implements waybill.Leaser.
func (q *Queue) LeaseTime() time.Duration { return q.lease }

// Renew implements waybill.Leaser.
func (q *Queue) Renew(ctx context.Context, ds ...*waybill.Delivery) ([]*waybill.Delivery, error) {
	lost, err := q.each(ctx, "renew", ds, q.lease.Seconds())
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

// each runs a statement for all deliveries and returns those whose lease is
// lost.
func (q *Queue) each(ctx context.Context, verb string, ds []*waybill.Delivery, args ...any) ([]*waybill.Delivery, error) {
	p, err := q.db.ready(ctx)
	if err != nil {
		return nil, err
	}
	ids, leases := make([]int64, len(ds)), make([]int64, len(ds))
	for i, d := range ds {
		t, ok := d.Tag.(tag)
		if !ok {
			return nil, errors.New("the delivery is not of this transport")
		}
		ids[i], leases[i] = t.id, t.lease
	}
	rows, err := q.db.pool.Query(ctx, p.queue.Query(verb), append([]any{q.holder, ids, leases}, args...)...)
	if err != nil {
		return nil, translate(err)
	}
	// By lease: one message may be there twice, as it was lent first and as it is
	// lent now.
	ended := make(map[tag]bool, len(ds))
	var t tag
	if _, err := pgx.ForEachRow(rows, []any{&t.id, &t.lease}, func() error { ended[t] = true; return nil }); err != nil {
		return nil, translate(err)
	}
	var lost []*waybill.Delivery
	for _, d := range ds {
		if !ended[d.Tag.(tag)] {
			lost = append(lost, d)
		}
	}
	return lost, nil
}
