package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/gofrs/uuid/v5"

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
// to one receiver at a time, in order, and no more of them before the last are
// settled.
type Queue struct {
	db     *DB
	name   string
	lease  time.Duration
	holder uuid.UUID // this receiver, in the table
}

var (
	_ waybill.Receiver       = (*Queue)(nil)
	_ waybill.Leaser         = (*Queue)(nil)
	_ outbox.AtomicPublisher = (*Queue)(nil)
)

// Queue returns the queue of that name. Each call returns another receiver.
func (db *DB) Queue(name string, cfg QueueConfig) (*Queue, error) {
	if name == "" || len(name) > 190 {
		return nil, fmt.Errorf("waymysql: queue name %q: want 1 to 190 bytes", name)
	}
	if cfg.Lease != 0 && cfg.Lease < minLease {
		return nil, fmt.Errorf("waymysql: queue %s: Lease %v is too short to be renewed, want at least %v", name, cfg.Lease, minLease)
	}
	return &Queue{db: db, name: name, lease: cmp.Or(cfg.Lease, 15*time.Second), holder: uuid.Must(uuid.NewV4())}, nil
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
	if err := q.db.writer(ctx); err != nil {
		return fmt.Errorf("%w: %w", waybill.ErrUnavailable, err) // no message's fault
	}
	if err := q.db.inTx(ctx, func(tx *sql.Tx) error { return q.db.insert(ctx, tx, rows) }); err != nil {
		return fmt.Errorf("queue %s: %w", q.name, translate(err))
	}
	q.db.hint("queue " + q.name)
	return nil
}

// pollMin and pollMax bound the pause between looks at an empty queue.
const pollMin, pollMax = 5 * time.Millisecond, 250 * time.Millisecond

// tag is a Delivery's Tag.
type tag struct{ id, lease int64 }

// Receive implements waybill.Receiver. Between looks at an empty queue it waits
// from 5 to 250 ms; a commit in this process ends the wait.
func (q *Queue) Receive(ctx context.Context, most int) ([]*waybill.Delivery, error) {
	if err := q.db.writer(ctx); err != nil {
		return nil, err
	}
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		ds, err := q.claim(ctx, most)
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

// turns is how many rows of the gate table claimers of queues share.
const turns = 64

func (q *Queue) turn() int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(q.name))
	return int(h.Sum32() % turns)
}

func (q *Queue) claim(ctx context.Context, most int) (lent []*waybill.Delivery, err error) {
	if err := q.db.promote(ctx); err != nil {
		return nil, err
	}
	if ids, err := q.free(ctx, q.db.pool, 1); err != nil || len(ids) == 0 {
		return nil, err // without waiting for a turn
	}
	// A claim that began is not cut off: its rows would be lent to no receiver until
	// the lease ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.lease)
	defer cancel()
	err = q.db.inTx(ctx, func(tx *sql.Tx) error {
		var turn int
		if err := tx.QueryRowContext(ctx, q.db.queue.Query("turn"), q.turn()).Scan(&turn); err != nil {
			return err
		}
		ids, err := q.free(ctx, tx, most)
		if err != nil || len(ids) == 0 {
			return err
		}
		lent, err = q.lock(ctx, tx, ids)
		if err != nil || len(lent) == 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, q.db.queue.Query("lend"), jsonIDs(idsOf(lent)), q.lease.Microseconds(), hexID(q.holder))
		return err
	})
	if err != nil {
		return nil, err
	}
	return lent, nil
}

// free returns the ids of rows that may be lent.
func (q *Queue) free(ctx context.Context, from querier, most int) (ids []int64, err error) {
	err = each(ctx, from, q.db.queue.Query("free"), func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(&id)
		ids = append(ids, id)
		return err
	}, []byte(q.name), most)
	return ids, err
}

// lock reads rows that were free just now, and locks them. A row that is held
// after all was settled late, in the moment between, by its last holder: its key
// is left alone.
func (q *Queue) lock(ctx context.Context, tx *sql.Tx, ids []int64) (lent []*waybill.Delivery, err error) {
	waits := map[string]bool{}
	err = each(ctx, tx, q.db.queue.Query("lock"), func(rows *sql.Rows) error {
		rec := &waybill.Record{}
		d := &waybill.Delivery{Record: rec}
		var t tag
		var meta string
		var held bool
		if err := rows.Scan(&t.id, &held, id{&rec.ID}, &rec.Name, &rec.Key, &meta, &rec.Body, moment{&rec.DispatchedAt}, &d.Failures, &t.lease); err != nil {
			return err
		}
		if waits[rec.Key] || held {
			waits[rec.Key] = rec.Key != ""
			return nil
		}
		rec.Problem = headers.Decode(rec, meta)
		d.Tag = t
		lent = append(lent, d)
		return nil
	}, jsonIDs(ids))
	return lent, err
}

func idsOf(ds []*waybill.Delivery) []int64 {
	ids := make([]int64, len(ds))
	for i, d := range ds {
		ids[i] = d.Tag.(tag).id
	}
	return ids
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
	return q.settle(ctx, "retry", []*waybill.Delivery{d}, meta, delay.Microseconds())
}

// LeaseTime implements waybill.Leaser.
func (q *Queue) LeaseTime() time.Duration { return q.lease }

// Renew implements waybill.Leaser.
func (q *Queue) Renew(ctx context.Context, ds ...*waybill.Delivery) ([]*waybill.Delivery, error) {
	lost, err := q.update(ctx, "renew", ds, q.lease.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("queue %s: renew: %w", q.name, err)
	}
	return lost, nil
}

func (q *Queue) settle(ctx context.Context, verb string, ds []*waybill.Delivery, args ...any) error {
	lost, err := q.update(ctx, verb, ds, args...)
	if err == nil && len(lost) > 0 {
		err = fmt.Errorf("%d of %d messages, the first %s: %w", len(lost), len(ds), lost[0].Record.ID, waybill.ErrLeaseLost)
	}
	if err != nil {
		return fmt.Errorf("queue %s: %s: %w", q.name, verb, err)
	}
	return nil
}

// update runs the named statement for all deliveries whose lease is still theirs,
// and returns the rest.
func (q *Queue) update(ctx context.Context, name string, ds []*waybill.Delivery, args ...any) (lost []*waybill.Delivery, err error) {
	if err := q.db.writer(ctx); err != nil {
		return nil, err
	}
	for _, d := range ds {
		if _, ok := d.Tag.(tag); !ok {
			return nil, errors.New("the delivery is not of this transport")
		}
	}
	if len(ds) == 0 {
		return nil, nil
	}
	err = q.db.inTx(ctx, func(tx *sql.Tx) error {
		leases, err := q.leases(ctx, tx, idsOf(ds))
		if err != nil {
			return err
		}
		// One message may be there twice: as it was lent first, and as it is lent now.
		var ours []int64
		lost = nil
		for _, d := range ds {
			if t := d.Tag.(tag); leases[t.id] == t.lease {
				ours = append(ours, t.id)
			} else {
				lost = append(lost, d)
			}
		}
		if len(ours) == 0 {
			return nil
		}
		_, err = tx.ExecContext(ctx, q.db.queue.Query(name), append([]any{jsonIDs(ours)}, args...)...)
		return err
	})
	if err != nil {
		return nil, translate(err)
	}
	return lost, nil
}

// leases locks rows and returns the leases, from 1, of rows that were last lent to
// this receiver.
func (q *Queue) leases(ctx context.Context, tx *sql.Tx, ids []int64) (map[int64]int64, error) {
	leases := make(map[int64]int64, len(ids))
	return leases, each(ctx, tx, q.db.queue.Query("leases"), func(rows *sql.Rows) error {
		var id, lease int64
		err := rows.Scan(&id, &lease)
		leases[id] = lease
		return err
	}, jsonIDs(ids), hexID(q.holder))
}
