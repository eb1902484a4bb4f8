package waysqlite

import (
	"cmp"
	"context"
	"time"

	"github.com/waybill-go/waybill/internal/sqlcore"
)

// Retention implements inbox.Store.
func (db *DB) Retention() time.Duration {
	db.retaining.Need()
	return db.retention
}

func (db *DB) recordRetention(ctx context.Context) error {
	return db.retaining.Record(ctx, func(ctx context.Context) error { return db.writeRetention(ctx, "record_retention", db.retention) })
}

func (db *DB) writeRetention(ctx context.Context, statement string, d time.Duration) error {
	return db.write(ctx, func(tx *txn) error {
		_, err := tx.exec(ctx, db.inboxSQL.Query(statement), sqlcore.Seconds(d))
		return err
	})
}

// InboxRetention implements admin.Database.
func (db *DB) InboxRetention(ctx context.Context) (time.Duration, error) {
	var seconds int64
	err := db.readRow(ctx, db.inboxSQL.Query("retention"), nil, []any{&seconds})
	return time.Duration(seconds) * time.Second, err
}

// SetInboxRetention implements admin.Database.
func (db *DB) SetInboxRetention(ctx context.Context, d time.Duration) error {
	return db.writeRetention(ctx, "set_retention", d)
}

// PruneExpired implements inbox.Pruner.
func (db *DB) PruneExpired(ctx context.Context, max int) (removed int, err error) {
	age, err := db.InboxRetention(ctx)
	if err != nil {
		return 0, err
	}
	before := time.Now().Add(-cmp.Or(age, db.retention)).UnixMicro()
	err = db.write(ctx, func(tx *txn) (err error) {
		if removed, err = tx.exec(ctx, db.inboxSQL.Query("prune"), before, max); err != nil {
			return err
		}
		keys, err := tx.exec(ctx, db.uniqueSQL.Query("prune"), time.Now().UnixMicro(), max-removed)
		removed += keys
		return err
	})
	return removed, err
}

// MaxConns returns 1: a file has one writer. While a handler with an inbox runs, no other
// writes, and no worker of the file renews a lease.
func (db *DB) MaxConns() int { return 1 }
