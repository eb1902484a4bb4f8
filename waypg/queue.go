package waypg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// QueueConfig tunes a Queue. The zero value is fit for production.
type QueueConfig struct {
	// Lease is how long a delivery is leased before it must be renewed; zero means
	// 15 s, less than 50 ms is refused. The messages of a receiver that died come
	// again after that.
	Lease time.Duration
}

// A Queue is a transport kept in a table: queue://NAME. It sends, publishes for
// a relay and receives; any number of processes may. A key's messages are delivered
// to one receiver at a time, in order, and no more of them before those are
// settled. Between looks at an empty queue Receive waits from 5 to 250 ms; a
// commit in this process ends the wait. It has the methods of waybill.Sender,
// waybill.Receiver and outbox.Publisher, and is safe for
// concurrent use.
type Queue struct{ *queue }

type queue = sqlcore.Queue // embedded by a name that is not exported

var (
	_ waybill.Sender   = (*Queue)(nil)
	_ waybill.Receiver = (*Queue)(nil)
	_ outbox.Publisher = (*Queue)(nil)
)

// Queue returns the queue of that name. Each call returns a new receiver.
func (db *DB) Queue(name string, cfg QueueConfig) (*Queue, error) {
	q, err := sqlcore.NewQueue(queueStore{db}, &db.wakes, name, cfg.Lease)
	if err != nil {
		return nil, fmt.Errorf("waypg: %w", err)
	}
	return &Queue{q}, nil
}

// queueStore implements sqlcore.QueueStore.
type queueStore struct{ db *DB }

func (s queueStore) Ready(ctx context.Context) error {
	_, err := s.db.ensureSchema(ctx)
	return err
}

func (queueStore) Refuses(err error) bool { return refusesRecord(err) }

// Insert implements sqlcore.QueueStore. One batch is one transaction, and its locks end
// with it.
func (s queueStore) Insert(ctx context.Context, rows []outbox.Row) error {
	batch := &pgx.Batch{}
	if err := s.db.queueInserts(s.db.resolved(), batch, rows); err != nil {
		return err
	}
	return translate(s.db.pool.SendBatch(ctx, batch).Close())
}

// Claim implements sqlcore.QueueStore.
func (s queueStore) Claim(ctx context.Context, to sqlcore.Consumer, limit int) (delivered []*waybill.Delivery, err error) {
	p := s.db.resolved()
	if err := s.db.promoteDue(ctx, p); err != nil {
		return nil, err
	}
	var found bool
	if err := s.db.pool.QueryRow(ctx, p.queue.Query("any"), to.Queue).Scan(&found); err != nil || !found {
		return nil, translate(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), to.Lease)
	defer cancel()
	err = pgx.BeginTxFunc(ctx, s.db.pool, readCommitted, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, p.queue.Query("one_claimer"), p.namespace, to.Queue); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, p.queue.Query("claim"), to.Queue, to.Holder.String(), to.Lease.Seconds(), limit)
		if err != nil {
			return err
		}
		delivered, err = pgx.CollectRows(rows, toDelivery)
		return err
	})
	if err != nil {
		return nil, translate(err)
	}
	return delivered, nil
}

func toDelivery(row pgx.CollectableRow) (*waybill.Delivery, error) {
	rec := &waybill.Record{}
	d := &waybill.Delivery{Record: rec}
	var delivered sqlcore.DeliveredRow
	var meta string
	var id [16]byte
	if err := row.Scan(&delivered.ID, &id, &rec.Name, &rec.Key, &meta, &rec.Body, &rec.DispatchedAt, &d.Failures, &delivered.Lease); err != nil {
		return nil, err
	}
	rec.ID, rec.DispatchedAt = id, rec.DispatchedAt.UTC()
	rec.Problem = headers.Decode(rec, meta)
	d.Tag = delivered
	return d, nil
}

// Settle implements sqlcore.QueueStore.
func (s queueStore) Settle(ctx context.Context, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (map[sqlcore.DeliveredRow]bool, error) {
	ids, leases := make([]int64, len(delivered)), make([]int64, len(delivered))
	for i, l := range delivered {
		ids[i], leases[i] = l.ID, l.Lease
	}
	args := []any{by.Holder.String(), ids, leases}
	switch c.Verb {
	case "renew":
		args = append(args, c.After.Seconds())
	case "retry":
		args = append(args, c.After.Seconds(), c.Headers)
	}
	rows, err := s.db.pool.Query(ctx, s.db.resolved().queue.Query(c.Verb), args...)
	if err != nil {
		return nil, translate(err)
	}
	settled := make(map[sqlcore.DeliveredRow]bool, len(delivered))
	var l sqlcore.DeliveredRow
	_, err = pgx.ForEachRow(rows, []any{&l.ID, &l.Lease}, func() error { settled[l] = true; return nil })
	return settled, translate(err)
}
