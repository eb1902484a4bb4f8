package waypg

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// A unit is one unit of work.
type unit struct {
	sqlcore.Unit
	sharedConn // of InTx
	db         *DB
	parts      int // of a group, so far
}

// savepoint is the name of all savepoints: the server lets a later one hide an earlier
// one, and statistics of statements have one entry.
const savepoint = "waybill_savepoint"

// unitTx is a unit's transaction, as the application sees it. It ends with the
// unit alone, and its nested transactions take their messages with them.
type unitTx struct {
	pgx.Tx
	unit *unit
}

var errUnitEnds = errors.New("waypg: a unit of work ends with its function: return an error to roll back")

// Commit is refused.
func (t *unitTx) Commit(context.Context) error { return errUnitEnds }

// Rollback is refused.
func (t *unitTx) Rollback(context.Context) error { return errUnitEnds }

// Begin opens a savepoint; its Rollback undoes the dispatches since.
func (t *unitTx) Begin(ctx context.Context) (pgx.Tx, error) { return nest(ctx, t.Tx, t.unit) }

func (t *unitTx) unitOf() (*unit, error) { return t.unit, nil }

// nestedTx is a savepoint of a unit of work.
type nestedTx struct {
	pgx.Tx
	unit *unit
	from int
	over atomic.Bool
}

func nest(ctx context.Context, outer pgx.Tx, u *unit) (pgx.Tx, error) {
	from := u.Mark()
	tx, err := outer.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &nestedTx{Tx: tx, unit: u, from: from}, nil
}

// Begin opens a savepoint inside this one.
func (t *nestedTx) Begin(ctx context.Context) (pgx.Tx, error) { return nest(ctx, t.Tx, t.unit) }

// Commit releases the savepoint.
func (t *nestedTx) Commit(ctx context.Context) error {
	t.over.Store(true)
	return t.Tx.Commit(ctx)
}

// Rollback undoes the savepoint and the dispatches in it. After Commit it does
// nothing.
func (t *nestedTx) Rollback(ctx context.Context) error {
	t.over.Store(true)
	err := t.Tx.Rollback(ctx)
	if !errors.Is(err, pgx.ErrTxClosed) {
		t.unit.Undo(t.from)
	}
	return err
}

func (t *nestedTx) unitOf() (*unit, error) {
	if t.over.Load() {
		return nil, sqlcore.ErrOver
	}
	return t.unit, nil
}

// unitOf returns the unit of work whose transaction tx is, or nil.
func (db *DB) unitOf(tx pgx.Tx) (*unit, error) {
	if tx == nil {
		return nil, sqlcore.ErrNoTransaction
	}
	t, ok := tx.(interface{ unitOf() (*unit, error) })
	if !ok {
		return nil, nil
	}
	if u, err := t.unitOf(); err != nil || u.db == db {
		return u, err
	}
	return nil, errForeign
}

// InTx implements outbox.Writer and inbox.Store. Dispatched messages are written
// in one round trip together with COMMIT, after the deferred constraints were
// checked, so that the dispatch locks are held for as short as can be.
//
// A deadlock or a serialization failure that the function returns wraps
// waybill.ErrTransactionLost as well.
//
// From its first inbox entry on the server ends the transaction of a process that is silent
// for Config.IdleTimeout. A slow function is not silent, unless it keeps a result open for
// as long, or has used LargeObjects or Conn of the transaction.
func (db *DB) InTx(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	if err := waybill.CheckUnit(ctx, db); err != nil {
		return err
	}
	p, err := db.beforeUnit(ctx)
	if err != nil {
		return err
	}
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", translate(err))
	}
	defer conn.Release() // a connection with an open transaction is closed
	tx, err := conn.Conn().Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", translate(err))
	}
	u := &unit{db: db, sharedConn: sharedConn{conn: conn.Conn()}}
	stop := sqlcore.KeepAlive(ctx, db.idle, u.ping)
	committed := false
	defer func() {
		stop()
		u.End()
		if !committed && !conn.Conn().IsClosed() && conn.Conn().PgConn().TxStatus() != 'I' {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlcore.RollbackTimeout)
			defer cancel()
			_ = tx.Rollback(ctx)
		}
	}()
	if err := fn(waybill.WithUnit(ctx, db), &unitTx{&sharedTx{tx, &u.sharedConn}, u}); err != nil {
		return lostTo(err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	stop()
	if err := stillOpen(conn.Conn()); err == errAborted {
		return u.abortedBy()
	} else if err != nil {
		return err
	}
	rows := u.End()
	if err := db.commit(ctx, p, conn.Conn(), rows); err != nil {
		return err
	}
	committed = true
	db.hintRows(rows)
	return nil
}

// errEnded says that a unit of work had no transaction any more at its end.
var errEnded = errors.New("the transaction was ended inside the unit of work, by a COMMIT or ROLLBACK of its own: nothing was dispatched, and a COMMIT has kept the statements before it")

// errAborted says that a statement failed and its error was ignored.
var errAborted = errors.New("a statement of the unit of work failed and its error was ignored: nothing of it happened")

// lostTo returns err, of a unit's function, with waybill.ErrTransactionLost if it is a deadlock or a serialization failure
// by which the server has ended a transaction. A lost connection is an error like others: a
// statement may be what ends it, each time.
func lostTo(err error) error {
	if errors.Is(err, waybill.ErrTransactionLost) || !rolledBack(err) {
		return err
	}
	return fmt.Errorf("%w: %w", waybill.ErrTransactionLost, err)
}

// stillOpen makes sure that later statements run in the unit's transaction, and do
// not commit one by one.
func stillOpen(conn *pgx.Conn) error {
	if conn.IsClosed() {
		return fmt.Errorf("the connection was lost inside the unit of work: %w", translate(pgconn.ErrConnClosed))
	}
	switch conn.PgConn().TxStatus() {
	case 'T':
		return nil
	case 'E':
		return errAborted
	}
	return errEnded
}

// commit writes rows and commits, in one round trip.
func (db *DB) commit(ctx context.Context, p *catalog, conn *pgx.Conn, rows []outbox.Row) error {
	batch := &pgx.Batch{}
	if len(rows) > 0 {
		batch.Queue(connecting.Query("check_deferred"))
		if err := db.queueInserts(p, batch, rows); err != nil {
			return err
		}
	}
	queueCommit(batch)
	err := conn.SendBatch(ctx, batch).Close()
	if err == nil {
		return nil
	}
	if !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		return fmt.Errorf("commit: %w", db.translateInsert(err)) // it is still open
	}
	return commitError(err, rows)
}

// queueCommit adds COMMIT, which fails where the server answers that it has rolled back.
func queueCommit(batch *pgx.Batch) {
	batch.Queue("COMMIT").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() == "ROLLBACK" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
}

// commitError says whether a failed commit is known to have failed.
func commitError(err error, rows []outbox.Row) error {
	if notCommitted(err) {
		return fmt.Errorf("commit: %w", translate(err))
	}
	return sqlcore.CommitUnknown(err, rows)
}

// Savepoint implements outbox.Writer. In a transaction that the caller began it
// undoes statements; the inserts of a dispatch are among them.
func (db *DB) Savepoint(ctx context.Context, tx pgx.Tx, fn func(ctx context.Context) error) error {
	u, err := db.unitOf(tx)
	if err != nil {
		return err
	}
	if u == nil {
		u = &unit{} // the caller's transaction has no buffer
	}
	return sqlcore.Savepoint(ctx, &u.Unit, savepoint, func(ctx context.Context, statement string) error {
		_, err := tx.Exec(ctx, statement)
		return translate(err)
	}, fn)
}
