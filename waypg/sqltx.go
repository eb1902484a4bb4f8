package waypg

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// units are the units of work of database/sql that are open in this process:
// *sql.Tx -> *unit. A *sql.Tx cannot be wrapped.
var units sync.Map

// unitOf returns the unit of work whose transaction tx is, or nil.
func (s *SQLDB) unitOf(tx *sql.Tx) (*unit, error) {
	if tx == nil {
		return nil, sqlcore.ErrNoTransaction
	}
	found, ok := units.Load(tx)
	if !ok {
		return nil, nil
	}
	if u := found.(*unit); u.db == s.DB {
		return u, nil
	}
	return nil, errForeign
}

// asking is the queryRow of a transaction.
func asking(tx *sql.Tx) queryRow {
	return func(ctx context.Context, query string, args ...any) pgx.Row {
		return tx.QueryRowContext(ctx, query, args...)
	}
}

// InTx implements outbox.Writer and inbox.Store. Savepoints that the function sets
// with SQL statements do not undo messages: use Tx.Savepoint. The idle timeout is as for
// DB.InTx.
func (s *SQLDB) InTx(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if err := waybill.CheckUnit(ctx, s.DB); err != nil {
		return err
	}
	p, err := s.beforeUnit(ctx)
	if err != nil {
		return err
	}
	conn, err := s.pool.Conn(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", translate(err))
	}
	defer conn.Close()
	// The transaction ends by our word alone: a context that ends between COMMIT
	// and its answer must not decide the result. A server that has vanished ends it, too.
	// Its begin alone ends with ctx.
	began, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	begun := context.AfterFunc(ctx, end)
	tx, err := conn.BeginTx(began, nil)
	begun()
	if err != nil {
		return fmt.Errorf("begin: %w", translate(cmp.Or(ctx.Err(), err)))
	}
	u := &unit{db: s.DB}
	// While the unit is open, its function and its keep-alive alone use the connection.
	if err := conn.Raw(func(c any) error { u.conn = c.(*stdlib.Conn).Conn(); return nil }); err != nil {
		return err
	}
	stop := sqlcore.KeepAlive(ctx, s.idle, func(ctx context.Context) {
		// The lock of database/sql keeps statements of fn away.
		_ = conn.Raw(func(any) error { u.ping(ctx); return nil })
	})
	units.Store(tx, u)
	defer func() {
		stop()
		u.End()
		units.Delete(tx)
		defer time.AfterFunc(sqlcore.RollbackTimeout, end).Stop()
		_ = tx.Rollback() // after a commit this does nothing
	}()
	if err := fn(waybill.WithUnit(ctx, s.DB), tx); err != nil {
		return lostTo(err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	stop()
	if err := stillOpen(u.conn); err != nil {
		return err
	}
	rows := u.End()
	if err := s.commitTx(ctx, p, tx, rows, end); err != nil {
		return err
	}
	s.hintRows(rows)
	return nil
}

// commitTx writes the rows of a unit of work and commits. COMMIT has the idle timeout: end ends it.
func (s *SQLDB) commitTx(ctx context.Context, p *catalog, tx *sql.Tx, rows []outbox.Row, end func()) error {
	if len(rows) > 0 {
		if _, err := tx.ExecContext(ctx, connecting.Query("check_deferred")); err != nil {
			return fmt.Errorf("commit: %w", translate(err))
		}
		if err := s.insert(ctx, p, tx, rows); err != nil {
			return err
		}
	}
	defer time.AfterFunc(s.idle, end).Stop()
	if err := tx.Commit(); err != nil {
		return commitError(err, rows)
	}
	return nil
}

// Savepoint implements outbox.Writer. In a transaction that the caller began it
// undoes statements; the inserts of a dispatch are among them.
func (s *SQLDB) Savepoint(ctx context.Context, tx *sql.Tx, fn func(ctx context.Context) error) error {
	u, err := s.unitOf(tx)
	if err != nil {
		return err
	}
	if u == nil {
		u = &unit{} // the caller's transaction has no buffer
	}
	return sqlcore.Savepoint(ctx, &u.Unit, savepoint, func(ctx context.Context, statement string) error {
		_, err := tx.ExecContext(ctx, statement)
		return translate(err)
	}, fn)
}

// Write implements outbox.Writer.
func (s *SQLDB) Write(ctx context.Context, tx *sql.Tx, rows ...outbox.Row) error {
	u, err := s.unitOf(tx)
	if err != nil {
		return err
	}
	if u != nil {
		return u.Add(rows)
	}
	p, err := s.resolveInTx(ctx, asking(tx))
	if err != nil {
		return err
	}
	if err := isOurs(ctx, p, asking(tx)); err != nil {
		return err
	}
	return s.insert(ctx, p, tx, rows)
}

// insert writes rows with plain parameters, because the transaction may be one
// of another driver than pgx.
func (s *SQLDB) insert(ctx context.Context, p *catalog, tx *sql.Tx, rows []outbox.Row) error {
	all, locks, err := s.prepare(rows)
	if err != nil {
		return err
	}
	numbers := make([]string, len(locks))
	for i, lock := range locks {
		numbers[i] = fmt.Sprint(lock)
	}
	array := "{" + strings.Join(numbers, ",") + "}" // may be empty, for the sake of synchronous_commit
	if _, err := tx.ExecContext(ctx, p.outbox.Query("lock_many"), p.namespace, array); err != nil {
		return fmt.Errorf("dispatch lock: %w", translate(err))
	}
	for _, r := range all {
		query, args := r.statement(p, nil)
		_, err := tx.ExecContext(ctx, query, args...)
		if err == nil && r.Unique != nil {
			query, args := confirmUnique(p, r.Row)
			_, err = tx.ExecContext(ctx, query, args...)
		}
		if err != nil {
			return fmt.Errorf("insert %s: %w", r.Record.Name, s.translateInsert(err))
		}
	}
	return nil
}

// InsertTx implements inbox.Store.
func (s *SQLDB) InsertTx(ctx context.Context, tx *sql.Tx, e inbox.Entry) (bool, error) {
	if err := e.Check(); err != nil {
		return false, err
	}
	p, err := s.resolveInTx(ctx, asking(tx))
	if err != nil {
		return false, err
	}
	u, err := s.unitOf(tx)
	if err != nil {
		return false, err
	}
	result, err := tx.ExecContext(ctx, p.inbox.Query("claim"), s.claimArgs(u, e)...)
	if err != nil {
		return false, translate(err)
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// RunInSavepoint implements inbox.Store.
func (s *SQLDB) RunInSavepoint(ctx context.Context, tx *sql.Tx, e inbox.Entry, fn func(ctx context.Context) error) (fresh bool, failed, lost error) {
	u, err := s.unitOf(tx)
	if err != nil {
		return false, nil, err
	}
	return s.part(ctx, u, e, fn)
}
