package waysqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
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
// settled; a call of Receive returns at most a tenth of its maximum of one key.
// Between looks at an empty queue Receive waits from 5 to 250 ms; a commit in this
// process ends the wait. It has the methods of waybill.Sender, waybill.Receiver and
// outbox.Publisher, and is safe for concurrent use.
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

// Any implements sqlcore.ReceiverStore.
func (s queueStore) Any(ctx context.Context, queue string) (bool, error) {
	if err := s.db.promote(ctx); err != nil {
		return false, err
	}
	return s.db.anyRows(ctx, s.db.queueSQL, queue)
}

// Claim implements sqlcore.ReceiverStore.
func (s queueStore) Claim(ctx context.Context, to sqlcore.Consumer, fn func(context.Context, sqlcore.QueueClaim) error) error {
	return s.db.claimRows(ctx, s.db.queueSQL, to, fn)
}

func (db *DB) anyRows(ctx context.Context, sql sqlfile.Set, queue string) (found bool, err error) {
	err = db.readRow(ctx, sql.Query("any"), []any{queue}, []any{&found})
	return found, err
}

// claimRows claims from queues or retry queues, by the statements of their table. ctx
// bounds the wait for the writer alone.
func (db *DB) claimRows(ctx context.Context, sql sqlfile.Set, to sqlcore.Consumer, fn func(context.Context, sqlcore.QueueClaim) error) error {
	return db.write(ctx, func(tx *txn) error {
		return fn(context.WithoutCancel(ctx), queueClaim{tx, sql, to, map[int64]sqlcore.Held{}})
	})
}

// queueClaim implements sqlcore.QueueClaim. As the only writer it has all rows locked.
type queueClaim struct {
	tx     *txn
	sql    sqlfile.Set
	to     sqlcore.Consumer
	states map[int64]sqlcore.Held // of the rows that it has read
}

// Read implements sqlcore.QueueClaim.
func (c queueClaim) Read(ctx context.Context, limit, each int) (found []sqlcore.QueueRow, err error) {
	if _, err := c.tx.exec(ctx, c.sql.Query("due"), c.to.Queue, limit); err != nil {
		return nil, err
	}
	rows, err := c.tx.query(ctx, c.sql.Query("read"), c.to.Queue, limit, each)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var r sqlcore.QueueRow
		if err := rows.Scan(&r.ID, &r.Key, &r.Held); err != nil {
			return nil, err
		}
		found = append(found, r)
		c.states[r.ID] = r.Held
	}
	return found, rows.Err()
}

// Lock implements sqlcore.QueueClaim.
func (c queueClaim) Lock(context.Context, []int64) (map[int64]sqlcore.Held, error) {
	return c.states, nil
}

// Lease implements sqlcore.QueueClaim.
func (c queueClaim) Lease(ctx context.Context, ids []int64) (delivered []*waybill.Delivery, err error) {
	rows, err := c.tx.query(ctx, c.sql.Query("lease"), list(ids), c.to.Holder[:], c.to.Lease.Microseconds())
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		d, err := toDelivery(rows)
		if err != nil {
			return nil, err
		}
		delivered = append(delivered, d)
	}
	return delivered, rows.Err()
}

// Set implements sqlcore.QueueClaim.
func (c queueClaim) Set(ctx context.Context, to sqlcore.Held, ids []int64) error {
	name := map[sqlcore.Held]string{sqlcore.Claimable: "make_claimable", sqlcore.SetAside: "set_aside"}[to]
	_, err := c.tx.exec(ctx, c.sql.Query(name), list(ids))
	return err
}

func toDelivery(rows *sql.Rows) (*waybill.Delivery, error) {
	rec := &waybill.Record{}
	d := &waybill.Delivery{Record: rec}
	var delivered sqlcore.DeliveredRow
	var meta string
	var created int64
	if err := rows.Scan(&delivered.ID, &rec.ID, &rec.Name, &rec.Key, &meta, &rec.Body, &created, &d.Failures, &delivered.Lease, &d.Redelivered); err != nil {
		return nil, err
	}
	rec.DispatchedAt = micros(created)
	rec.Problem = headers.Decode(rec, meta)
	delivered.Key = rec.Key
	d.Tag = delivered
	return d, nil
}

// Settle implements sqlcore.ReceiverStore.
func (s queueStore) Settle(ctx context.Context, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (map[sqlcore.DeliveredRow]bool, error) {
	return s.db.settleRows(ctx, s.db.queueSQL, []string{s.db.queueSQL.Query(c.Verb)}, by, c, delivered)
}

// settleRows runs the statements of a change for each row, the last of which settles it,
// and next after an acknowledgement. All rows are one transaction.
func (db *DB) settleRows(ctx context.Context, sql sqlfile.Set, statements []string, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (map[sqlcore.DeliveredRow]bool, error) {
	settled := make(map[sqlcore.DeliveredRow]bool, len(delivered))
	keys := map[string]bool{}
	err := db.write(ctx, func(tx *txn) error {
		for _, l := range delivered {
			args := []any{l.ID, by.Holder[:], l.Lease}
			switch c.Verb {
			case "renew":
				args = append(args, c.After.Microseconds())
			case "retry":
				args = append(args, c.After.Microseconds(), c.Headers)
			}
			n := 0
			for _, statement := range statements {
				var err error
				if n, err = tx.exec(ctx, statement, args...); err != nil {
					return err
				}
			}
			if n > 0 {
				settled[l] = true
				keys[l.Key] = c.Verb == "ack"
			}
		}
		return next(ctx, tx, sql, by.Queue, keys)
	})
	return settled, err
}

// next makes the next messages of keys claimable, whose rows before them have gone.
func next(ctx context.Context, tx *txn, sql sqlfile.Set, queue string, keys map[string]bool) error {
	for key, gone := range keys {
		if key == "" || !gone {
			continue
		}
		if _, err := tx.exec(ctx, sql.Query("next"), queue, key); err != nil {
			return err
		}
	}
	return nil
}
