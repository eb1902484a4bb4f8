package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
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
	// 15 s, less than 50 ms is refused. The messages of a receiver that died come
	// again after that.
	Lease time.Duration
}

// A Queue is a transport kept in a table: queue://NAME. It sends, publishes for
// a relay and receives; any number of processes may. A key's messages are delivered
// to one receiver at a time, in order, and no more of them before the last are
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

// Queue returns the queue of that name. Each call returns another receiver.
func (db *DB) Queue(name string, cfg QueueConfig) (*Queue, error) {
	q, err := sqlcore.NewQueue(queueStore{db}, &db.wakes, name, cfg.Lease)
	if err != nil {
		return nil, fmt.Errorf("waymysql: %w", err)
	}
	return &Queue{q}, nil
}

// queueStore implements sqlcore.QueueStore.
type queueStore struct{ db *DB }

func (s queueStore) Ready(ctx context.Context) error { return s.db.writer(ctx) }

func (queueStore) Refuses(err error) bool { return refusesRecord(err) }

// Insert implements sqlcore.QueueStore. A single statement, such as that of one row, commits by
// itself.
func (s queueStore) Insert(ctx context.Context, rows []outbox.Row) error {
	script, err := s.db.inserting(rows)
	if err != nil {
		return translate(err)
	}
	if len(script.statements) > 1 {
		return s.db.inQueueTx(ctx, s.db.queue, func(tx *queueTx) error {
			tx.next = append(tx.next, script.statements...)
			return nil
		})
	}
	pool, err := s.db.relayPool(ctx) // whose sessions commit so
	if err != nil {
		return translate(err)
	}
	return translate(s.db.run(ctx, pool, script))
}

// turns is how many rows of the gate table claimers of queues share.
const turns = 64

// turn returns the row that claimers lock.
func turn(name string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return int(h.Sum32() % turns)
}

// Any implements sqlcore.ReceiverStore.
func (s queueStore) Any(ctx context.Context, queue string) (bool, error) {
	if err := s.db.promote(ctx); err != nil {
		return false, translate(err)
	}
	return s.db.anyRows(ctx, s.db.queue, queue)
}

// Claim implements sqlcore.ReceiverStore.
func (s queueStore) Claim(ctx context.Context, to sqlcore.Consumer, fn func(context.Context, sqlcore.QueueClaim) error) error {
	return s.db.claimRows(ctx, s.db.queue, to, fn)
}

func (db *DB) anyRows(ctx context.Context, set sqlfile.Set, queue string) (found bool, err error) {
	err = db.pool.QueryRowContext(ctx, set.Query("any"), []byte(queue), []byte(queue)).Scan(&found)
	return found, translate(err)
}

// claimRows claims from queues or retry queues, by the statements of their table.
func (db *DB) claimRows(ctx context.Context, set sqlfile.Set, to sqlcore.Consumer, fn func(context.Context, sqlcore.QueueClaim) error) error {
	ctx, cancel := sqlcore.ClaimContext(ctx, to.Lease)
	defer cancel()
	return db.inQueueTx(ctx, set, func(tx *queueTx) error { return fn(ctx, queueClaim{tx, to}) })
}

// queueClaim implements sqlcore.QueueClaim. On MariaDB it makes two round trips without Lock.
type queueClaim struct {
	*queueTx
	to sqlcore.Consumer
}

// Read implements sqlcore.QueueClaim.
func (c queueClaim) Read(ctx context.Context, limit, each int) ([]sqlcore.QueueRow, error) {
	turns := 0
	c.query("turn", func(*sql.Rows) error { turns++; return nil }, turn(c.to.Turn))
	var ready []sqlcore.QueueRow // due and without a key
	var due []int64
	c.query("due", func(rows *sql.Rows) error {
		var id int64
		var unkeyed bool
		err := rows.Scan(&id, &unkeyed)
		if unkeyed {
			ready = append(ready, sqlcore.QueueRow{ID: id})
		} else {
			due = append(due, id)
		}
		return err
	}, []byte(c.to.Queue), limit)
	found, first, err := c.read(ctx, limit)
	if err == nil && turns == 0 {
		err = errNoTurn
	}
	if err == nil && len(due) > 0 {
		var locked []int64
		c.query("lock_due", scanInto(&locked), jsonIDs(due))
		if err = c.send(ctx); err == nil {
			c.set(sqlcore.Claimable, locked)
			found, first, err = c.read(ctx, limit)
		}
	}
	found = append(found, ready...)
	if err != nil || each == 1 {
		return slices.Concat(found, first), err
	}
	behind := []sqlcore.QueueRow{}
	for _, r := range first {
		if r.Held == sqlcore.SetAside {
			c.behind(&behind, r, each-1)
		}
	}
	if len(c.next) > 0 {
		err = c.send(ctx)
	}
	known := map[int64]bool{}
	for _, r := range found {
		known[r.ID] = true
	}
	behind = slices.DeleteFunc(behind, func(r sqlcore.QueueRow) bool { return known[r.ID] })
	return slices.Concat(found, first, behind), err
}

var errNoTurn = errors.New("a row of the gates of queues is missing: run schema up")

// read returns the oldest claimable rows, and the first held rows of their keys: a row in
// flight or, without one, the oldest set aside.
func (c queueClaim) read(ctx context.Context, limit int) (found, first []sqlcore.QueueRow, err error) {
	seen := map[string]bool{"": true}
	c.query("read", func(rows *sql.Rows) error {
		var r sqlcore.QueueRow
		var head, aside sql.NullInt64
		if err := rows.Scan(&r.ID, &r.Key, &head, &aside); err != nil {
			return err
		}
		found = append(found, r)
		switch {
		case seen[r.Key]:
		case head.Valid:
			first = append(first, sqlcore.QueueRow{ID: head.Int64, Key: r.Key, Held: sqlcore.InFlight})
		case aside.Valid:
			first = append(first, sqlcore.QueueRow{ID: aside.Int64, Key: r.Key, Held: sqlcore.SetAside})
		}
		seen[r.Key] = true
		return nil
	}, []byte(c.to.Queue), limit)
	err = c.send(ctx)
	return found, first, err
}

// behind adds the rows of a key behind its first to found.
func (c queueClaim) behind(found *[]sqlcore.QueueRow, first sqlcore.QueueRow, limit int) {
	of := []any{[]byte(c.to.Queue), []byte(first.Key), first.ID, limit}
	c.query("behind", func(rows *sql.Rows) error {
		r := sqlcore.QueueRow{Key: first.Key}
		err := rows.Scan(&r.ID, &r.Held)
		*found = append(*found, r)
		return err
	}, append(of, of...)...)
}

// Set implements sqlcore.QueueClaim.
func (c queueClaim) Set(_ context.Context, to sqlcore.Held, ids []int64) error {
	c.set(to, ids)
	return nil
}

// Lease implements sqlcore.QueueClaim.
func (c queueClaim) Lease(ctx context.Context, ids []int64) (delivered []*waybill.Delivery, err error) {
	c.exec(c.sql.Query("lock_free"), jsonIDs(ids))
	c.exec(c.sql.Query("lease"), c.to.Lease.Microseconds(), hexID(c.to.Holder))
	c.query("leased", func(rows *sql.Rows) error {
		rec := &waybill.Record{}
		d := &waybill.Delivery{Record: rec}
		var l sqlcore.DeliveredRow
		var meta string
		if err := rows.Scan(&l.ID, id{&rec.ID}, &rec.Name, &rec.Key, &meta, &rec.Body, moment{&rec.DispatchedAt}, &d.Failures, &l.Lease, &d.Redelivered); err != nil {
			return err
		}
		rec.Problem = headers.Decode(rec, meta)
		l.Key = rec.Key
		d.Tag = l
		delivered = append(delivered, d)
		return nil
	})
	err = c.commit(ctx)
	return delivered, err
}

// Settle implements sqlcore.ReceiverStore.
func (s queueStore) Settle(ctx context.Context, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (map[sqlcore.DeliveredRow]bool, error) {
	return s.db.settleRows(ctx, s.db.queue, s.db.queue.Query(c.Verb), by, c, delivered)
}

// settleRows locks rows, and runs the statement of a change on those whose lease is the
// last. On MariaDB it is one round trip, with keys two.
func (db *DB) settleRows(ctx context.Context, set sqlfile.Set, statement string, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (map[sqlcore.DeliveredRow]bool, error) {
	settled := map[sqlcore.DeliveredRow]bool{}
	return settled, db.inQueueTx(ctx, set, func(tx *queueTx) error {
		tx.lockLeased(by, delivered, settled)
		switch c.Verb {
		case "renew":
			tx.exec(statement, c.After.Microseconds())
		case "retry":
			tx.exec(statement, c.Headers, c.After.Microseconds())
		default:
			tx.exec(statement)
		}
		if c.Verb != "ack" {
			return nil
		}
		return tx.freeNext(ctx, by.Queue, delivered)
	})
}
