package waysqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"modernc.org/sqlite"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// A unit is one unit of work.
type unit struct {
	sqlcore.Unit
	db    *DB
	parts int // of a group, so far

	// Only touched under the connection's lock, by hooks and InTx.
	ready bool // to commit: the function has returned and the rows are flushed
	ended bool // SQLite has rolled back, asked or not
}

// units holds the open units of this process: *sql.Tx -> *unit.
var units sync.Map

// forbidTransactionEnd keeps statements from committing on their own. SQLite may end a
// transaction under its user: an interrupted write, a full disk, OR ROLLBACK.
// Each later statement would then commit on its own.
func (u *unit) forbidTransactionEnd(conn *sql.Conn) (lift func(), err error) {
	set := func(commit sqlite.CommitHookFn, rollback sqlite.RollbackHookFn) error {
		return conn.Raw(func(c any) error {
			hooks, ok := c.(sqlite.HookRegisterer)
			if !ok {
				return fmt.Errorf("the driver's connection is a %T, want one of modernc.org/sqlite", c)
			}
			hooks.RegisterCommitHook(commit)
			hooks.RegisterRollbackHook(rollback)
			return nil
		})
	}
	refuse := func() int32 {
		if u.ready && !u.ended {
			return 0
		}
		return 1
	}
	return func() { _ = set(nil, nil) }, set(refuse, func() { u.ended = true })
}

// errEnded says that a unit of work had no transaction any more at its end.
var errEnded = errors.New("the transaction was ended inside the unit of work, by a COMMIT or ROLLBACK of its own or by the database after an error that was ignored: nothing of it happened")

// InTx implements outbox.Writer and inbox.Store.
func (db *DB) InTx(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if err := waybill.CheckUnit(ctx, db); err != nil {
		return err
	}
	if err := db.checkSchema(ctx); err != nil {
		return err
	}
	if err := db.recordRetention(ctx); err != nil {
		return err
	}
	// The transaction begins and ends by our word alone: a context that ends
	// between COMMIT and its answer must not change the reported result.
	conn, err := db.writerConn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // gives it back to the pool
	u := &unit{db: db}
	lift, err := u.forbidTransactionEnd(conn)
	if err != nil {
		return fmt.Errorf("begin on %s: %w", db.path, err)
	}
	defer lift()
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return fmt.Errorf("begin on %s: %w", db.path, translate(err))
	}
	units.Store(tx, u)
	defer func() {
		units.Delete(tx)
		_ = tx.Rollback() // after a commit this does nothing
	}()
	if err := fn(waybill.WithUnit(ctx, db), tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if u.ended {
		return errEnded
	}
	rows := u.End()
	if err := db.insert(ctx, newTxn(tx, &db.kept), rows); err != nil {
		return err
	}
	u.ready = true
	if err := tx.Commit(); err != nil {
		return commitError(err, rows)
	}
	db.wakes.HintRows(rows)
	return nil
}

// commitError says whether a failed commit is known to have failed.
func commitError(err error, rows []outbox.Row) error {
	if notCommitted(err) || errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("commit: %w", translate(err))
	}
	return sqlcore.CommitUnknown(err, rows)
}

// writerConn takes the one connection that writes, which others may hold for
// busy_timeout at most: a goroutine that holds it itself would wait for ever.
func (db *DB) writerConn(ctx context.Context) (*sql.Conn, error) {
	waiting, cancel := context.WithTimeout(ctx, db.busy)
	defer cancel()
	db.kept.prepare(waiting, db.writer)
	conn, err := db.writer.Conn(waiting)
	switch {
	case err != nil && ctx.Err() == nil && waiting.Err() != nil:
		return nil, fmt.Errorf("%w: %s: the writing connection was taken for %v: does this goroutine hold a transaction itself?", waybill.ErrUnavailable, db.path, db.busy)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%w: begin on %s: the writing connection was taken until the deadline: %w", waybill.ErrUnavailable, db.path, err)
	case err != nil:
		return nil, fmt.Errorf("begin on %s: %w", db.path, translate(err))
	}
	return conn, nil
}

// Savepoint implements outbox.Writer. In a transaction of the caller's own it
// undoes statements, the inserts of dispatched messages included.
func (db *DB) Savepoint(ctx context.Context, tx *sql.Tx, fn func(ctx context.Context) error) error {
	u, err := db.unitOf(tx)
	if err != nil {
		return err
	}
	if u == nil {
		u = &unit{} // the caller's transaction has no buffer
	}
	return sqlcore.Savepoint(ctx, &u.Unit, "waybill_savepoint", func(ctx context.Context, statement string) error {
		_, err := tx.ExecContext(ctx, statement)
		return translate(err)
	}, fn)
}

// unitOf returns the unit of work whose transaction tx is, or nil.
func (db *DB) unitOf(tx *sql.Tx) (*unit, error) {
	if tx == nil {
		return nil, sqlcore.ErrNoTransaction
	}
	found, ok := units.Load(tx)
	if !ok {
		return nil, nil
	}
	u := found.(*unit)
	if u.db != db {
		return nil, fmt.Errorf("the transaction is one of %s, and the outbox is in %s", u.db.path, db.path)
	}
	return u, nil
}

// Write implements outbox.Writer.
func (db *DB) Write(ctx context.Context, tx *sql.Tx, rows ...outbox.Row) error {
	u, err := db.unitOf(tx)
	if err != nil {
		return err
	}
	if u == nil {
		tx := newTxn(tx, nil)
		defer tx.close()
		return db.insert(ctx, tx, rows)
	}
	return u.Add(rows)
}

// insert writes rows as part of tx.
func (db *DB) insert(ctx context.Context, tx *txn, rows []outbox.Row) error {
	for _, row := range rows {
		rec := row.Record
		meta, err := headers.Encode(rec)
		if err != nil {
			return err
		}
		to, query := db.insertInto(row)
		args := []any{to, rec.ID[:], rec.Name, rec.Key, rec.DispatchedAt.UnixMicro(), meta, bodyOf(rec)}
		if rec.Delay > 0 {
			args = append(args, rec.Delay.Microseconds())
		}
		switch n, err := tx.exec(ctx, query, args...); {
		case err != nil:
			return fmt.Errorf("insert %s: %w", rec.Name, translate(err))
		case n == 0:
			return fmt.Errorf("insert %s: transport %q is unknown in this database", rec.Name, to)
		}
		if row.Unique != nil {
			if err := db.confirm(ctx, tx, row); err != nil {
				return fmt.Errorf("unique key of %s: %w", rec.Name, err)
			}
		}
	}
	return nil
}

// insertInto returns the statement that inserts a row, and the transport or queue.
func (db *DB) insertInto(row outbox.Row) (to, query string) {
	switch delayed := row.Record.Delay > 0; {
	case delayed && row.Queue != "":
		return row.Queue, db.outboxSQL.Query("insert_delayed_local")
	case delayed:
		return row.Transport, db.outboxSQL.Query("insert_delayed")
	case row.Queue != "":
		return row.Queue, db.queueSQL.Query("insert")
	}
	return row.Transport, db.outboxSQL.Query("insert")
}

// bodyOf returns a body that is not NULL in the database.
func bodyOf(rec *waybill.Record) []byte {
	if rec.Body == nil {
		return []byte{}
	}
	return rec.Body
}
