package waypg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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
// to one receiver at a time, in order, and no more of them before those are
// settled; a call of Receive returns at most a tenth of its maximum of one key.
// Between looks at an empty queue Receive waits from 5 to 250 ms; a commit in this
// process ends the wait, and with Config.Notify or Config.Listen one of another
// process that announces. It has the methods of waybill.Sender, waybill.Receiver and
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
	if err := sendAll(ctx, s.db.pool, batch); err != nil {
		return translate(err)
	}
	s.db.hintRows(rows)
	return nil
}

// Any implements sqlcore.ReceiverStore.
func (s queueStore) Any(ctx context.Context, queue string) (found bool, err error) {
	p := s.db.resolved()
	s.db.listenForQueue(ctx, p, queue)
	if err := s.db.promoteDue(ctx, p); err != nil {
		return false, err
	}
	return s.db.anyRow(ctx, p.queue, queue)
}

// anyRow reports whether a claim from a queue or a retry queue may find rows, by the
// statements of its table.
func (db *DB) anyRow(ctx context.Context, sql sqlfile.Set, queue string) (found bool, err error) {
	err = db.pool.QueryRow(ctx, sql.Query("any"), queue).Scan(&found)
	return found, translate(err)
}

// Claim implements sqlcore.ReceiverStore.
func (s queueStore) Claim(ctx context.Context, to sqlcore.Consumer, fn func(context.Context, sqlcore.QueueClaim) error) error {
	return s.db.claimRows(ctx, s.db.resolved().queue, to, fn)
}

// claimRows is Claim by the statements of a table. One that times out may wait for the turn of
// a session that is stuck.
func (db *DB) claimRows(ctx context.Context, sql sqlfile.Set, to sqlcore.Consumer, fn func(context.Context, sqlcore.QueueClaim) error) error {
	claim, cancel := sqlcore.ClaimContext(ctx, to.Lease)
	defer cancel()
	err := db.claimOnce(claim, sql, to, fn)
	if err != nil && errors.Is(claim.Err(), context.DeadlineExceeded) {
		ending, cancel := context.WithTimeout(ctx, sqlcore.RollbackTimeout)
		defer cancel()
		_, stuck := db.pool.Exec(ending, db.resolved().outbox.Query("end_stuck"), db.idle.Seconds())
		err = errors.Join(err, stuck)
	}
	return translate(err)
}

func (db *DB) claimOnce(ctx context.Context, sql sqlfile.Set, to sqlcore.Consumer, fn func(context.Context, sqlcore.QueueClaim) error) error {
	return db.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { // which ends the connection after an error
		c := &queueClaim{conn: conn.Conn(), sql: sql, namespace: db.resolved().namespace, idle: fmt.Sprint(db.idle.Milliseconds()), to: to}
		c.next.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
		if err := fn(ctx, c); err != nil {
			return err
		}
		return c.commit(ctx)
	})
}

// queueClaim implements sqlcore.QueueClaim, in two round trips without Lock.
type queueClaim struct {
	conn      *pgx.Conn
	sql       sqlfile.Set
	namespace int32
	idle      string // idle_in_transaction_session_timeout
	to        sqlcore.Consumer
	next      pgx.Batch // statements of the next round trip
	committed bool
}

// send makes a round trip.
func (c *queueClaim) send(ctx context.Context) error {
	err := c.conn.SendBatch(ctx, &c.next).Close()
	c.next = pgx.Batch{}
	return err
}

func (c *queueClaim) commit(ctx context.Context) error {
	if c.committed {
		return nil
	}
	c.committed = true
	c.next.Queue("COMMIT")
	return c.send(ctx)
}

// Read implements sqlcore.QueueClaim.
func (c *queueClaim) Read(ctx context.Context, limit, each int) (found []sqlcore.QueueRow, err error) {
	c.next.Queue(c.sql.Query("turn"), c.namespace, c.to.Turn, c.idle)
	c.next.Queue(c.sql.Query("due"), c.to.Queue, limit).Query(func(rows pgx.Rows) error {
		var due sqlcore.QueueRow // without a key
		_, err := pgx.ForEachRow(rows, []any{&due.ID}, func() error { found = append(found, due); return nil })
		return err
	})
	c.next.Queue(c.sql.Query("read"), c.to.Queue, limit, each).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.AppendRows(found, rows, pgx.RowToStructByPos[sqlcore.QueueRow])
		return err
	})
	err = c.send(ctx)
	return found, err
}

// Lock implements sqlcore.QueueClaim.
func (c *queueClaim) Lock(ctx context.Context, ids []int64) (map[int64]sqlcore.Held, error) {
	rows, err := c.conn.Query(ctx, c.sql.Query("lock"), ids)
	if err != nil {
		return nil, err
	}
	states := map[int64]sqlcore.Held{}
	var id int64
	var held sqlcore.Held
	_, err = pgx.ForEachRow(rows, []any{&id, &held}, func() error { states[id] = held; return nil })
	return states, err
}

// Set implements sqlcore.QueueClaim.
func (c *queueClaim) Set(_ context.Context, to sqlcore.Held, ids []int64) error {
	name := map[sqlcore.Held]string{sqlcore.Claimable: "make_claimable", sqlcore.SetAside: "set_aside"}[to]
	c.next.Queue(c.sql.Query(name), ids)
	return nil
}

// Lease implements sqlcore.QueueClaim.
func (c *queueClaim) Lease(ctx context.Context, ids []int64) (delivered []*waybill.Delivery, err error) {
	c.next.Queue(c.sql.Query("lease"), ids, c.to.Holder.String(), c.to.Lease.Seconds()).Query(func(rows pgx.Rows) (err error) {
		delivered, err = pgx.CollectRows(rows, toDelivery)
		return err
	})
	err = c.commit(ctx)
	return delivered, err
}

func toDelivery(row pgx.CollectableRow) (*waybill.Delivery, error) {
	rec := &waybill.Record{}
	d := &waybill.Delivery{Record: rec}
	var delivered sqlcore.DeliveredRow
	var meta string
	if err := row.Scan(&delivered.ID, (*[16]byte)(&rec.ID), &rec.Name, &rec.Key, &meta, &rec.Body, &rec.DispatchedAt, &d.Failures, &delivered.Lease, &d.Redelivered); err != nil {
		return nil, err
	}
	toUTC(&rec.DispatchedAt)
	rec.Problem = headers.Decode(rec, meta)
	delivered.Key = rec.Key
	d.Tag = delivered
	return d, nil
}

// Settle implements sqlcore.ReceiverStore.
func (s queueStore) Settle(ctx context.Context, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (map[sqlcore.DeliveredRow]bool, error) {
	sql := s.db.resolved().queue
	return s.db.settleRows(ctx, sql, sql.Query(c.Verb), by, c, delivered)
}

// settleRows runs the statement of a change on a table. It is one transaction, in one
// round trip.
func (db *DB) settleRows(ctx context.Context, sql sqlfile.Set, statement string, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (map[sqlcore.DeliveredRow]bool, error) {
	ids, leases := make([]int64, len(delivered)), make([]int64, len(delivered))
	keys := map[string]bool{}
	for i, l := range delivered {
		ids[i], leases[i], keys[l.Key] = l.ID, l.Lease, true
	}
	delete(keys, "")
	args := []any{by.Holder.String(), ids, leases}
	switch c.Verb {
	case "renew":
		args = append(args, c.After.Seconds())
	case "retry":
		args = append(args, c.After.Seconds(), c.Headers)
	}
	settled := make(map[sqlcore.DeliveredRow]bool, len(delivered))
	batch := &pgx.Batch{}
	batch.Queue(statement, args...).Query(collectRows(settled))
	if c.Verb == "ack" && len(keys) > 0 {
		batch.Queue(sql.Query("next"), by.Queue, slices.Collect(maps.Keys(keys)))
	}
	return settled, db.sendTransaction(ctx, batch)
}

// collectRows adds the rows that a statement returns to settled.
func collectRows(settled map[sqlcore.DeliveredRow]bool) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var l sqlcore.DeliveredRow
		_, err := pgx.ForEachRow(rows, []any{&l.ID, &l.Lease, &l.Key}, func() error { settled[l] = true; return nil })
		return err
	}
}

// sendTransaction runs statements of which each sees what was committed before it, as
// one transaction.
func (db *DB) sendTransaction(ctx context.Context, statements *pgx.Batch) error {
	batch := &pgx.Batch{}
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	batch.Queue(db.resolved().queue.Query("pin"))
	batch.QueuedQueries = append(batch.QueuedQueries, statements.QueuedQueries...)
	batch.Queue("COMMIT")
	return translate(db.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { // which ends the connection after an error
		return conn.SendBatch(ctx, batch).Close()
	}))
}
