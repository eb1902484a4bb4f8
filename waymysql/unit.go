package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// A unit is one unit of work.
type unit struct {
	sqlcore.Unit
	db *DB

	mu      sync.Mutex
	entries []inbox.Entry // that were remembered, and are in doubt until the end

	parts int           // of a group, so far
	done  []inbox.Entry // of parts; certain once the transaction is seen to be alive
}

// units are the units of work that are open in this process: *sql.Tx -> *unit.
// A *sql.Tx cannot be wrapped.
var units sync.Map

// unitOf returns the unit of work whose transaction tx is, or nil.
func (db *DB) unitOf(tx *sql.Tx) (*unit, error) {
	if tx == nil {
		return nil, sqlcore.ErrNoTransaction
	}
	found, ok := units.Load(tx)
	if !ok {
		return nil, nil
	}
	if u := found.(*unit); u.db == db {
		return u, nil
	}
	return nil, errForeign
}

var errForeign = errors.New("the transaction is one of another database than the outbox's")

// savepoints counts the savepoints of this process: a savepoint replaces one of the same
// name, and does not hide it.
var savepoints atomic.Int64

// InTx implements outbox.Writer and inbox.Store. Savepoints that the function
// sets by SAVEPOINT statements do not undo messages: use Tx.Savepoint. When the
// server has ended the transaction under the function, by a deadlock
// or by a statement that commits, nothing more of it is committed
// and the error wraps waybill.ErrTransactionLost. When ctx ends while the unit
// commits, which may wait for dispatchers to the same bucket, the outcome is
// unknown: the error wraps waybill.ErrCommitUnknown.
//
// The server ends the transaction of a process that is silent for Config.IdleTimeout. A
// slow function is not silent, unless it keeps a result open for as long.
func (db *DB) InTx(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if err := waybill.CheckUnit(ctx, db); err != nil {
		return err
	}
	if err := db.writer(ctx); err != nil {
		return err
	}
	if err := db.recordRetention(ctx); err != nil {
		return err
	}
	conn, err := db.units.Conn(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", translate(err))
	}
	defer conn.Close()
	// The transaction ends by our word alone: a context that ends between COMMIT
	// and its answer must not decide the result. Its begin alone ends with ctx.
	began, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	begun := context.AfterFunc(ctx, end)
	tx, err := conn.BeginTx(began, nil)
	begun()
	if err != nil {
		return fmt.Errorf("begin: %w", translate(cmp.Or(ctx.Err(), err)))
	}
	stop := sqlcore.KeepAlive(ctx, db.idle, func(ctx context.Context) {
		// Without an error: it would close conn, which waits for the end of tx.
		_ = conn.Raw(func(raw any) error { raw.(*unitConn).keepAlive(ctx); return nil })
	})
	u, committed := &unit{db: db}, false
	units.Store(tx, u)
	defer func() {
		stop()
		u.End()
		units.Delete(tx)
		if !committed {
			db.abandon(ctx, conn, tx)
		}
	}()
	if err := fn(waybill.WithUnit(ctx, db), tx); err != nil {
		return lostTo(err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	stop()
	rows := u.End()
	if err := db.patiently(func() error { return db.commit(ctx, conn, tx, append(u.entries, u.done...), rows) }); err != nil {
		return err
	}
	committed = true
	db.wakes.HintRows(rows)
	return nil
}

// lostTo returns err, of a unit's function, with waybill.ErrTransactionLost if it is a deadlock
// by which the server has ended a transaction, or a row that another transaction has changed
// since this one's snapshot (MariaDB's innodb_snapshot_isolation). A lost connection is an error like others: a
// statement may be what ends it, each time.
func lostTo(err error) error {
	if errors.Is(err, waybill.ErrTransactionLost) || !is(err, errDeadlock) && !is(err, errChanged) {
		return err
	}
	return fmt.Errorf("%w: %w", waybill.ErrTransactionLost, err)
}

// commit ends a unit of work: it notes that its entries are certain, writes rows
// and commits, on MariaDB by one round trip, so that gates are held for as short
// as can be.
func (db *DB) commit(ctx context.Context, conn *sql.Conn, tx *sql.Tx, entries []inbox.Entry, rows []outbox.Row) error {
	inserts, err := db.inserting(rows)
	if err != nil {
		return err
	}
	all := append(db.processed(entries), inserts.statements...)
	var session *unitConn // which the unit alone uses while its transaction is open
	if err := conn.Raw(func(raw any) error { session = raw.(*unitConn); return nil }); err != nil {
		return fmt.Errorf("commit: %w", translate(err))
	}
	blocks := db.blocks(append(all, statement{text: "RELEASE SAVEPOINT " + sentinel}, statement{text: "COMMIT"}))
	last := len(blocks) - 1
	for i, block := range blocks {
		within := ctx
		if i == last {
			if err := session.ResetSession(ctx); err != nil { // which sends nothing
				return fmt.Errorf("the connection was lost inside the unit of work: %w", translate(err))
			}
			if len(block) == 1 { // COMMIT waits for no lock
				var cancel context.CancelFunc
				within, cancel = context.WithTimeout(context.WithoutCancel(ctx), db.idle)
				defer cancel()
			}
		}
		switch err := db.execute(within, tx, block); {
		case is(err, errNoSavepoint):
			return errLost
		case err != nil && i == last && !notCommitted(err):
			return sqlcore.CommitUnknown(err, rows)
		case err != nil:
			return db.explain(ctx, tx, err, inserts.buckets, block)
		}
	}
	session.committed = true
	return tx.Commit() // which tells database/sql
}

// abandon rolls back. A session whose transaction was not the unit's any more is
// not used again: LOCK TABLES may have ended it, which a rollback does not undo.
func (db *DB) abandon(ctx context.Context, conn *sql.Conn, tx *sql.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlcore.RollbackTimeout)
	defer cancel()
	_, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT "+sentinel)
	if rolled := tx.Rollback(); err != nil || rolled != nil {
		discard(conn)
	}
}

// errLost reports that a unit of work has lost its transaction.
var errLost = fmt.Errorf("%w: a deadlock whose error was ignored, or a statement that commits, such as DDL: nothing more was committed, and nothing was dispatched", waybill.ErrTransactionLost)

// Savepoint implements outbox.Writer. In a transaction of the caller's it undoes
// statements, and the inserts of Dispatch are among them.
func (db *DB) Savepoint(ctx context.Context, tx *sql.Tx, fn func(ctx context.Context) error) error {
	u, err := db.unitOf(tx)
	if err != nil {
		return err
	}
	if u == nil {
		u = &unit{} // the caller's transaction has no buffer
	}
	return sqlcore.Savepoint(ctx, &u.Unit, fmt.Sprintf("%s_%d", sentinel, savepoints.Add(1)), func(ctx context.Context, statement string) error {
		_, err := tx.ExecContext(ctx, statement)
		return translate(err)
	}, fn)
}
