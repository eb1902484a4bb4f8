package waypg

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/inbox"
)

// Remember implements inbox.Store. A transaction that handles the same message
// at this moment is waited for.
func (db *DB) Remember(ctx context.Context, tx pgx.Tx, e inbox.Entry) (bool, error) {
	p, err := db.where(ctx)
	if err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, p.inbox.Query("claim"), e.Handler, e.DedupKey, e.MessageID.String())
	return tag.RowsAffected() == 1, translate(err)
}

// Seen implements inbox.Log.
func (db *DB) Seen(ctx context.Context, e inbox.Entry) (seen bool, err error) {
	p, err := db.ready(ctx)
	if err != nil {
		return false, err
	}
	err = db.pool.QueryRow(ctx, p.inbox.Query("seen"), e.Handler, e.DedupKey).Scan(&seen)
	return seen, translate(err)
}

// Mark implements inbox.Log.
func (db *DB) Mark(ctx context.Context, e inbox.Entry) error {
	p, err := db.ready(ctx)
	if err != nil {
		return err
	}
	_, err = db.pool.Exec(ctx, p.inbox.Query("claim"), e.Handler, e.DedupKey, e.MessageID.String())
	return translate(err)
}
