package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/internal/sqlcore"
)

// Retention implements inbox.Store.
func (db *DB) Retention() time.Duration {
	db.retaining.Need()
	return db.retention
}

func (db *DB) recordRetention(ctx context.Context) error {
	return db.retaining.Record(ctx, func(ctx context.Context) error {
		seconds := sqlcore.Seconds(db.retention)
		_, err := db.pool.ExecContext(ctx, db.inbox.Query("record_retention"), seconds, seconds, seconds)
		return translate(err)
	})
}

// InboxRetention implements admin.Database.
func (db *DB) InboxRetention(ctx context.Context) (time.Duration, error) {
	var seconds int64
	err := db.readRow(ctx, db.inbox.Query("retention"), nil, &seconds)
	return time.Duration(seconds) * time.Second, err
}

// SetInboxRetention implements admin.Database.
func (db *DB) SetInboxRetention(ctx context.Context, d time.Duration) error {
	if err := db.writer(ctx); err != nil {
		return err
	}
	_, err := db.pool.ExecContext(ctx, db.inbox.Query("set_retention"), sqlcore.Seconds(d))
	return translate(err)
}

// PruneExpired implements inbox.Pruner.
func (db *DB) PruneExpired(ctx context.Context, max int) (n int, err error) {
	age, err := db.InboxRetention(ctx)
	if err != nil {
		return 0, err
	}
	err = db.inTx(ctx, func(tx *sql.Tx) (err error) {
		if n, err = db.prune(ctx, tx, cmp.Or(age, db.retention), max); err != nil || n == max {
			return err
		}
		keys, err := db.pruneUnique(ctx, tx, max-n)
		n += keys
		return err
	})
	return n, translate(err)
}

// MaxConns returns how many units of work may be open at once. A worker needs one for each
// of its handlers with an inbox; leases are renewed on other connections.
func (db *DB) MaxConns() int { return db.units.Stats().MaxOpenConnections }
