package waypg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/sqlcore"
)

// InsertTx implements inbox.Store. A transaction that handles the same message
// at this moment is waited for.
func (db *DB) InsertTx(ctx context.Context, tx pgx.Tx, e inbox.Entry) (bool, error) {
	if err := e.Check(); err != nil {
		return false, err
	}
	u, err := db.unitOf(tx)
	if err != nil {
		return false, err
	}
	p, err := db.resolveInTx(ctx, tx.QueryRow)
	if err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, p.inbox.Query("claim"), db.claimArgs(u, e)...)
	return tag.RowsAffected() == 1, translate(err)
}

// claimArgs are the parameters of claim in a unit of work, or in another transaction for nil.
func (db *DB) claimArgs(u *unit, e inbox.Entry) []any {
	return []any{e.Handler, e.DedupKey, e.MessageID.String(), db.idleOf(u)}
}

// idleOf returns the idle timeout that a statement is to set for a unit of work, in
// milliseconds; nil for another transaction.
func (db *DB) idleOf(u *unit) *int64 {
	if u == nil {
		return nil
	}
	u.timed.Store(true)
	return new(db.idle.Milliseconds())
}

// InTransaction implements inbox.Store.
func (db *DB) InTransaction(ctx context.Context) bool { return waybill.InUnit(ctx, db) }

// RunInSavepoint implements inbox.Store. The release of the part before, the savepoint
// and the inbox row are one round trip.
func (db *DB) RunInSavepoint(ctx context.Context, tx pgx.Tx, e inbox.Entry, fn func(ctx context.Context) error) (fresh bool, failed, lost error) {
	u, err := db.unitOf(tx)
	if err != nil {
		return false, nil, err
	}
	return db.part(ctx, u, e, fn)
}

func (db *DB) part(ctx context.Context, u *unit, e inbox.Entry, fn func(ctx context.Context) error) (fresh bool, failed, lost error) {
	if u == nil {
		return false, nil, errNoUnit
	}
	if err := e.Check(); err != nil {
		return false, err, nil
	}
	var p *catalog
	err := u.use(func(conn *pgx.Conn) (err error) {
		p, err = db.resolveInTx(ctx, conn.QueryRow)
		return err
	})
	if err != nil {
		return false, nil, err
	}
	mark := u.Mark()
	batch := &pgx.Batch{}
	if u.parts++; u.parts > 1 {
		batch.Queue("RELEASE SAVEPOINT waybill_part")
	}
	batch.Queue("SAVEPOINT waybill_part")
	batch.Queue(p.inbox.Query("claim"), db.claimArgs(u, e)...).Exec(func(tag pgconn.CommandTag) error {
		fresh = tag.RowsAffected() == 1
		return nil
	})
	if err := u.use(func(conn *pgx.Conn) error { return conn.SendBatch(ctx, batch).Close() }); err != nil {
		return false, nil, fmt.Errorf("inbox: %w", translate(err))
	}
	if !fresh {
		return false, nil, nil
	}
	failed = fn(waybill.WithUnit(ctx, db))
	switch err := u.use(stillOpen); {
	case err == errAborted && failed == nil:
		failed = u.abortedBy()
	case err == errEnded:
		return true, err, err
	case err != nil && err != errAborted:
		return true, nil, err
	}
	switch {
	case failed == nil:
		return true, nil, nil
	case rolledBack(failed): // which may be due to rows that the other parts have locked or read
		return true, nil, fmt.Errorf("%w: %w", waybill.ErrTransactionLost, failed)
	}
	u.Undo(mark)
	if err := u.undoPart(ctx); err != nil {
		return true, nil, err
	}
	return true, failed, nil
}

// undoPart rolls back to the savepoint of the last part.
func (u *unit) undoPart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlcore.RollbackTimeout)
	defer cancel()
	err := u.use(func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "ROLLBACK TO SAVEPOINT waybill_part")
		return err
	})
	if err != nil {
		return fmt.Errorf("rollback to savepoint: %w", translate(err))
	}
	return nil
}

// errNoUnit says that a part needs InTx.
var errNoUnit = errors.New("waypg: the transaction is not one of InTx")

// Contains implements inbox.Log.
func (db *DB) Contains(ctx context.Context, e inbox.Entry) (seen bool, err error) {
	if err := e.Check(); err != nil {
		return false, err
	}
	err = db.readRow(ctx, inboxSQL, "seen", []any{e.Handler, e.DedupKey}, &seen)
	return seen, err
}

// Insert implements inbox.Log.
func (db *DB) Insert(ctx context.Context, e inbox.Entry) error {
	if err := e.Check(); err != nil {
		return err
	}
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return err
	}
	_, err = db.pool.Exec(ctx, p.inbox.Query("claim"), db.claimArgs(nil, e)...)
	return translate(err)
}
