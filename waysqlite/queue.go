package waysqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// QueueConfig tunes a Queue. The zero value is fit for production.
type QueueConfig struct {
	// Lease is how long a delivery is leased before it must be renewed; zero means
	// 15 s, less than 50 ms is refused. The messages of a receiver that died come again after that.
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
		return nil, fmt.Errorf("waysqlite: %w", err)
	}
	return &Queue{q}, nil
}

// queueStore implements sqlcore.QueueStore.
type queueStore struct{ db *DB }

func (s queueStore) Ready(ctx context.Context) error { return s.db.checkSchema(ctx) }

func (queueStore) Refuses(err error) bool { return refusesRecord(err) }

// Insert implements sqlcore.QueueStore.
func (s queueStore) Insert(ctx context.Context, rows []outbox.Row) error {
	return s.db.write(ctx, func(tx *txn) error { return s.db.insert(ctx, tx, rows) })
}

// Claim implements sqlcore.QueueStore.
func (s queueStore) Claim(ctx context.Context, to sqlcore.Consumer, limit int) (delivered []*waybill.Delivery, err error) {
	if err := s.db.promote(ctx); err != nil {
		return nil, err
	}
	var now int64
	if err := s.db.reader.QueryRowContext(ctx, s.db.outboxSQL.Query("now")).Scan(&now); err != nil {
		return nil, translate(err)
	}
	var found bool
	if err := s.db.reader.QueryRowContext(ctx, s.db.queueSQL.Query("any"), to.Queue, now).Scan(&found); err != nil || !found {
		return nil, translate(err)
	}
	err = s.db.write(ctx, func(tx *txn) (err error) {
		ctx := context.WithoutCancel(ctx)
		// The clock again: the write lock may have been a while in coming.
		if err := tx.QueryRowContext(ctx, s.db.outboxSQL.Query("now")).Scan(&now); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, s.db.queueSQL.Query("claim"), to.Queue, now, to.Holder[:], now+to.Lease.Microseconds(), limit)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			d, err := toDelivery(rows)
			if err != nil {
				return err
			}
			delivered = append(delivered, d)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, err
	}
	return delivered, nil
}

func toDelivery(rows *sql.Rows) (*waybill.Delivery, error) {
	rec := &waybill.Record{}
	d := &waybill.Delivery{Record: rec}
	var delivered sqlcore.DeliveredRow
	var meta string
	var created int64
	if err := rows.Scan(&delivered.ID, &rec.ID, &rec.Name, &rec.Key, &meta, &rec.Body, &created, &d.Failures, &delivered.Lease); err != nil {
		return nil, err
	}
	rec.DispatchedAt = micros(created)
	rec.Problem = headers.Decode(rec, meta)
	d.Tag = delivered
	return d, nil
}

// Settle implements sqlcore.QueueStore. All rows are one transaction.
func (s queueStore) Settle(ctx context.Context, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (map[sqlcore.DeliveredRow]bool, error) {
	settled := make(map[sqlcore.DeliveredRow]bool, len(delivered))
	err := s.db.write(ctx, func(tx *txn) error {
		for _, l := range delivered {
			args := []any{l.ID, by.Holder[:], l.Lease}
			switch c.Verb {
			case "renew":
				args = append(args, c.After.Microseconds())
			case "retry":
				args = append(args, c.After.Microseconds(), c.Headers)
			}
			n, err := tx.exec(ctx, s.db.queueSQL.Query(c.Verb), args...)
			if err != nil {
				return err
			}
			if n > 0 {
				settled[l] = true
			}
		}
		return nil
	})
	return settled, err
}
