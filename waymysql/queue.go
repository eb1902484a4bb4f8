package waymysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
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

// Insert implements sqlcore.QueueStore.
func (s queueStore) Insert(ctx context.Context, rows []outbox.Row) error {
	return translate(s.db.inTx(ctx, func(tx *sql.Tx) error { return s.db.insert(ctx, tx, rows) }))
}

// turns is how many rows of the gate table claimers of queues share.
const turns = 64

// turn returns the row that claimers of a queue lock.
func turn(queue string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(queue))
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
	return translate(db.inTx(ctx, func(tx *sql.Tx) error { return fn(ctx, queueClaim{tx, set, to}) }))
}

// queueClaim implements sqlcore.QueueClaim.
type queueClaim struct {
	tx  *sql.Tx
	sql sqlfile.Set
	to  sqlcore.Consumer
}

// Read implements sqlcore.QueueClaim.
func (c queueClaim) Read(ctx context.Context, limit, each int) ([]sqlcore.QueueRow, error) {
	var locked int
	if err := c.tx.QueryRowContext(ctx, c.sql.Query("turn"), turn(c.to.Queue)).Scan(&locked); err != nil {
		return nil, err
	}
	due, err := idsOf(ctx, c.tx, c.sql.Query("due"), []byte(c.to.Queue), limit)
	if err == nil && len(due) > 0 {
		due, err = idsOf(ctx, c.tx, c.sql.Query("lock_due"), jsonIDs(due))
	}
	if err != nil {
		return nil, err
	}
	if err := c.Set(ctx, sqlcore.Claimable, due); err != nil {
		return nil, err
	}
	found, first, err := c.read(ctx, limit)
	if err != nil || each == 1 {
		return slices.Concat(found, first), err
	}
	for _, r := range first {
		if r.Held == sqlcore.SetAside {
			if found, err = c.behind(ctx, found, r, each-1); err != nil {
				return nil, err
			}
		}
	}
	return slices.Concat(found, first), nil
}

// read returns the oldest claimable rows, and the first held rows of their keys: a row in
// flight or, without one, the oldest set aside.
func (c queueClaim) read(ctx context.Context, limit int) (found, first []sqlcore.QueueRow, err error) {
	seen := map[string]bool{"": true}
	err = each(ctx, c.tx, c.sql.Query("read"), func(rows *sql.Rows) error {
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
	return found, first, err
}

// behind adds the next rows of a key to those found.
func (c queueClaim) behind(ctx context.Context, found []sqlcore.QueueRow, first sqlcore.QueueRow, limit int) ([]sqlcore.QueueRow, error) {
	args := []any{[]byte(c.to.Queue), []byte(first.Key), first.ID, limit}
	err := each(ctx, c.tx, c.sql.Query("behind"), func(rows *sql.Rows) error {
		r := sqlcore.QueueRow{Key: first.Key}
		err := rows.Scan(&r.ID, &r.Held)
		if !slices.ContainsFunc(found, func(other sqlcore.QueueRow) bool { return other.ID == r.ID }) {
			found = append(found, r)
		}
		return err
	}, append(args, args...)...)
	return found, err
}

// Lock implements sqlcore.QueueClaim.
func (c queueClaim) Lock(ctx context.Context, ids []int64) (map[int64]sqlcore.Held, error) {
	return lockRows(ctx, c.tx, c.sql, ids)
}

// lockRows locks rows, except those that another transaction has locked.
func lockRows(ctx context.Context, tx *sql.Tx, set sqlfile.Set, ids []int64) (map[int64]sqlcore.Held, error) {
	states := map[int64]sqlcore.Held{}
	err := each(ctx, tx, set.Query("lock"), func(rows *sql.Rows) error {
		var id int64
		var held sqlcore.Held
		err := rows.Scan(&id, &held)
		states[id] = held
		return err
	}, jsonIDs(ids))
	return states, err
}

// Lease implements sqlcore.QueueClaim.
func (c queueClaim) Lease(ctx context.Context, ids []int64) (delivered []*waybill.Delivery, err error) {
	if _, err := c.tx.ExecContext(ctx, c.sql.Query("lease"), jsonIDs(ids), c.to.Lease.Microseconds(), hexID(c.to.Holder)); err != nil {
		return nil, err
	}
	err = each(ctx, c.tx, c.sql.Query("leased"), func(rows *sql.Rows) error {
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
	}, jsonIDs(ids))
	return delivered, err
}

// Set implements sqlcore.QueueClaim.
func (c queueClaim) Set(ctx context.Context, to sqlcore.Held, ids []int64) error {
	return setRows(ctx, c.tx, c.sql, to, ids)
}

// setRows sets the state of locked rows.
func setRows(ctx context.Context, tx *sql.Tx, set sqlfile.Set, to sqlcore.Held, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	name := map[sqlcore.Held]string{sqlcore.Claimable: "make_claimable", sqlcore.SetAside: "set_aside"}[to]
	_, err := tx.ExecContext(ctx, set.Query(name), jsonIDs(ids))
	return err
}

// Settle implements sqlcore.ReceiverStore.
func (s queueStore) Settle(ctx context.Context, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (map[sqlcore.DeliveredRow]bool, error) {
	return s.db.settleRows(ctx, s.db.queue, s.db.queue.Query(c.Verb), by, c, delivered)
}

// settleRows locks rows, and runs the statement of a change on those whose lease is the
// last.
func (db *DB) settleRows(ctx context.Context, set sqlfile.Set, statement string, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (settled map[sqlcore.DeliveredRow]bool, err error) {
	err = db.inTx(ctx, func(tx *sql.Tx) error {
		if settled, err = lockLeased(ctx, tx, set, by, delivered); err != nil || len(settled) == 0 {
			return err
		}
		args := []any{jsonIDs(rowIDs(maps.Keys(settled)))}
		switch c.Verb {
		case "renew":
			args = append(args, c.After.Microseconds())
		case "retry":
			args = append(args, c.Headers, c.After.Microseconds())
		}
		if _, err = tx.ExecContext(ctx, statement, args...); err == nil && c.Verb == "ack" {
			err = next(ctx, tx, set, by.Queue, settled)
		}
		return err
	})
	return settled, translate(err)
}

func rowIDs(rows iter.Seq[sqlcore.DeliveredRow]) (ids []int64) {
	for l := range rows {
		ids = append(ids, l.ID)
	}
	return ids
}

// lockLeased locks the rows of deliveries, and returns those whose lease is the last.
func lockLeased(ctx context.Context, tx *sql.Tx, set sqlfile.Set, by sqlcore.Consumer, delivered []sqlcore.DeliveredRow) (ours map[sqlcore.DeliveredRow]bool, err error) {
	ours = map[sqlcore.DeliveredRow]bool{}
	err = each(ctx, tx, set.Query("leases"), func(rows *sql.Rows) error {
		var l sqlcore.DeliveredRow
		err := rows.Scan(&l.ID, &l.Lease, &l.Key)
		if slices.Contains(delivered, l) {
			ours[l] = true
		}
		return err
	}, jsonIDs(rowIDs(slices.Values(delivered))), hexID(by.Holder))
	return ours, err
}

// next makes the oldest row set aside of each key of acknowledged rows claimable, unless
// the key has a row in flight: that one brings it back then. A row in flight that is locked
// is being settled, maybe by a transaction that does not see that this one's row is
// gone: it does not count.
func next(ctx context.Context, tx *sql.Tx, set sqlfile.Set, queue string, acked map[sqlcore.DeliveredRow]bool) error {
	keys := map[string]bool{}
	for l := range acked {
		if l.Key != "" {
			keys[fmt.Sprintf("%x", l.Key)] = true
		}
	}
	if len(keys) == 0 {
		return nil
	}
	hex, err := json.Marshal(slices.Collect(maps.Keys(keys)))
	if err != nil {
		return err
	}
	heads := map[int64]sql.NullInt64{} // by the row set aside
	var ids []int64
	err = each(ctx, tx, set.Query("next"), func(rows *sql.Rows) error {
		var aside int64
		var head sql.NullInt64
		err := rows.Scan(&aside, &head)
		heads[aside] = head
		if ids = append(ids, aside); head.Valid {
			ids = append(ids, head.Int64)
		}
		return err
	}, []byte(queue), []byte(queue), string(hex))
	if err != nil || len(ids) == 0 {
		return err
	}
	states, err := lockRows(ctx, tx, set, ids)
	if err != nil {
		return err
	}
	var free []int64
	for aside, head := range heads {
		if held, ok := states[aside]; ok && held == sqlcore.SetAside && states[head.Int64] != sqlcore.InFlight {
			free = append(free, aside)
		}
	}
	return setRows(ctx, tx, set, sqlcore.Claimable, free)
}
