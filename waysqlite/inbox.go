package waysqlite

import (
	"context"
	"database/sql"

	"github.com/waybill-go/waybill/inbox"
)

// Remember implements inbox.Store.
func (db *DB) Remember(ctx context.Context, tx *sql.Tx, e inbox.Entry) (bool, error) {
	result, err := tx.ExecContext(ctx, db.inboxSQL.Query("claim"), e.Handler, e.DedupKey, e.MessageID[:])
	if err != nil {
		return false, translate(err)
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// Seen implements inbox.Log.
func (db *DB) Seen(ctx context.Context, e inbox.Entry) (bool, error) {
	if err := db.checkSchema(ctx); err != nil {
		return false, err
	}
	var seen bool
	err := db.reader.QueryRowContext(ctx, db.inboxSQL.Query("seen"), e.Handler, e.DedupKey).Scan(&seen)
	return seen, translate(err)
}

// Mark implements inbox.Log.
func (db *DB) Mark(ctx context.Context, e inbox.Entry) error {
	return db.write(ctx, func(tx *sql.Tx) error {
		_, err := db.Remember(ctx, tx, e)
		return err
	})
}
