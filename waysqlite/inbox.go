package waysqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
)

// InsertTx implements inbox.Store.
func (db *DB) InsertTx(ctx context.Context, tx *sql.Tx, e inbox.Entry) (bool, error) {
	if _, err := db.unitOf(tx); err != nil {
		return false, err
	}
	if err := e.Check(); err != nil {
		return false, err
	}
	result, err := tx.ExecContext(ctx, db.inboxSQL.Query("claim"), e.Handler, e.DedupKey, e.MessageID[:])
	if err != nil {
		return false, translate(err)
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// InTransaction implements inbox.Store.
func (db *DB) InTransaction(ctx context.Context) bool { return waybill.InUnit(ctx, db) }

// RunInSavepoint implements inbox.Store.
func (db *DB) RunInSavepoint(ctx context.Context, tx *sql.Tx, e inbox.Entry, fn func(ctx context.Context) error) (fresh bool, failed, lost error) {
	u, err := db.unitOf(tx)
	if err != nil {
		return false, nil, err
	}
	if u == nil {
		return false, nil, errNoUnit
	}
	if err := e.Check(); err != nil {
		return false, err, nil
	}
	mark := u.Mark()
	open := "SAVEPOINT waybill_part"
	if u.parts++; u.parts > 1 {
		open = "RELEASE waybill_part; " + open
	}
	if _, err := tx.ExecContext(ctx, open); err != nil {
		return false, nil, fmt.Errorf("savepoint: %w", translate(err))
	}
	if fresh, err := db.InsertTx(ctx, tx, e); err != nil || !fresh {
		return false, nil, err
	}
	failed = fn(waybill.WithUnit(ctx, db))
	if failed == nil { // where SQLite has rolled back, the next RELEASE or InTx says so
		return true, nil, nil
	}
	u.Undo(mark)
	if _, err := tx.ExecContext(context.WithoutCancel(ctx), "ROLLBACK TO waybill_part"); err != nil {
		return true, nil, fmt.Errorf("rollback to savepoint: %w", translate(err))
	}
	return true, failed, nil
}

// errNoUnit says that a part needs InTx.
var errNoUnit = errors.New("waysqlite: the transaction is not one of InTx")

// Contains implements inbox.Log.
func (db *DB) Contains(ctx context.Context, e inbox.Entry) (bool, error) {
	if err := e.Check(); err != nil {
		return false, err
	}
	var seen bool
	err := db.readRow(ctx, db.inboxSQL.Query("seen"), []any{e.Handler, e.DedupKey}, []any{&seen})
	return seen, err
}

// Insert implements inbox.Log.
func (db *DB) Insert(ctx context.Context, e inbox.Entry) error {
	return db.write(ctx, func(tx *txn) error {
		_, err := db.InsertTx(ctx, tx.Tx, e)
		return err
	})
}
