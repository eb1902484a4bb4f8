package waymysql

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"

	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
)

// A queueTx is a transaction on the rows of queues, in a session of the relays: it reads
// committed rows, and the server ends it when the client is silent. Statements gather
// until send makes a round trip.
type queueTx struct {
	db        *DB
	conn      executor
	sql       sqlfile.Set
	next      []statement
	committed bool
}

// inQueueTx runs fn in a transaction with the statements of a table.
func (db *DB) inQueueTx(ctx context.Context, set sqlfile.Set, fn func(tx *queueTx) error) error {
	pool, err := db.relayPool(ctx)
	if err != nil {
		return translate(err)
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return translate(err)
	}
	defer conn.Close()
	tx := &queueTx{db: db, conn: conn, sql: set, next: []statement{{text: "START TRANSACTION"}}}
	if err = fn(tx); err == nil {
		err = tx.commit(ctx)
	}
	if err != nil {
		discard(conn) // its end rolls back
	}
	return translate(err)
}

// exec adds a statement to the next round trip.
func (tx *queueTx) exec(text string, args ...any) {
	tx.next = append(tx.next, statement{text: text, args: args})
}

// query adds a statement whose rows scan reads.
func (tx *queueTx) query(name string, scan func(rows *sql.Rows) error, args ...any) {
	tx.next = append(tx.next, statement{text: tx.sql.Query(name), args: args, scan: scan})
}

func (tx *queueTx) send(ctx context.Context) error {
	all := tx.next
	tx.next = nil
	return tx.db.run(ctx, tx.conn, script{tx.db.bucketCount(), all})
}

func (tx *queueTx) commit(ctx context.Context) error {
	if tx.committed {
		return nil
	}
	tx.committed = true
	tx.exec("COMMIT")
	return tx.send(ctx)
}

// Lock implements sqlcore.QueueClaim.
func (tx *queueTx) Lock(ctx context.Context, ids []int64) (map[int64]sqlcore.Held, error) {
	states := map[int64]sqlcore.Held{}
	tx.query("lock", func(rows *sql.Rows) error {
		var id int64
		var held sqlcore.Held
		err := rows.Scan(&id, &held)
		states[id] = held
		return err
	}, jsonIDs(ids))
	err := tx.send(ctx)
	return states, err
}

// set sets the state of locked rows.
func (tx *queueTx) set(to sqlcore.Held, ids []int64) {
	if len(ids) > 0 {
		name := map[sqlcore.Held]string{sqlcore.Claimable: "make_claimable", sqlcore.SetAside: "set_aside"}[to]
		tx.exec(tx.sql.Query(name), jsonIDs(ids))
	}
}

// lockLeased locks the rows of deliveries whose lease is the last, in ascending order, for
// the statements that follow, and adds these deliveries to ours.
func (tx *queueTx) lockLeased(by sqlcore.Consumer, delivered []sqlcore.DeliveredRow, ours map[sqlcore.DeliveredRow]bool) {
	pairs := make([][2]int64, len(delivered))
	for i, l := range delivered {
		pairs[i] = [2]int64{l.ID, l.Lease}
	}
	slices.SortFunc(pairs, func(a, b [2]int64) int { return slices.Compare(a[:], b[:]) })
	tx.exec(tx.sql.Query("lock_leased"), jsonOf(pairs), hexID(by.Holder))
	tx.query("locked", func(rows *sql.Rows) error {
		var l sqlcore.DeliveredRow
		err := rows.Scan(&l.ID, &l.Lease, &l.Key)
		ours[l] = true
		return err
	})
}

// freeNext makes claimable the rows set aside behind those of keys, after the statement that
// deletes these, unless their key has a row in flight: that one brings it back then. A row in
// flight that is locked is being settled, maybe by a transaction that does not see that this
// one's row is gone: it does not count.
func (tx *queueTx) freeNext(ctx context.Context, queue string, gone []sqlcore.DeliveredRow) error {
	keys := map[string]bool{}
	for _, l := range gone {
		keys[fmt.Sprintf("%x", l.Key)] = true
	}
	if delete(keys, ""); len(keys) == 0 {
		return nil
	}
	heads := map[int64]int64{} // by the oldest row set aside of a key: one in flight, or 0
	var ids, free []int64
	tx.query("next", func(rows *sql.Rows) error {
		var aside int64
		var head sql.NullInt64
		err := rows.Scan(&aside, &head)
		if heads[aside], ids = head.Int64, append(ids, aside); head.Valid {
			ids = append(ids, head.Int64)
		}
		return err
	}, []byte(queue), []byte(queue), jsonOf(slices.Collect(maps.Keys(keys))))
	if err := tx.send(ctx); err != nil || len(ids) == 0 {
		return err
	}
	states, err := tx.Lock(ctx, ids)
	if err != nil {
		return err
	}
	for aside, head := range heads {
		if held, ok := states[aside]; ok && held == sqlcore.SetAside && states[head] != sqlcore.InFlight {
			free = append(free, aside)
		}
	}
	tx.set(sqlcore.Claimable, free)
	return nil
}
