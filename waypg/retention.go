package waypg

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

// beforeUnit is what a unit of work needs before it takes a connection: the schema, and the
// recorded retention.
func (db *DB) beforeUnit(ctx context.Context) (*catalog, error) {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return nil, err
	}
	return p, db.retaining.Record(ctx, func(ctx context.Context) error {
		_, err := db.pool.Exec(ctx, p.inbox.Query("record_retention"), sqlcore.Seconds(db.retention))
		return translate(err)
	})
}

// InboxRetention implements admin.Database.
func (db *DB) InboxRetention(ctx context.Context) (time.Duration, error) {
	var seconds int64
	err := db.readRow(ctx, inboxSQL, "retention", nil, &seconds)
	return time.Duration(seconds) * time.Second, err
}

// SetInboxRetention implements admin.Database.
func (db *DB) SetInboxRetention(ctx context.Context, d time.Duration) error {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return err
	}
	_, err = db.pool.Exec(ctx, p.inbox.Query("set_retention"), sqlcore.Seconds(d))
	return translate(err)
}

// PruneExpired implements inbox.Pruner.
func (db *DB) PruneExpired(ctx context.Context, max int) (int, error) {
	age, err := db.InboxRetention(ctx)
	if err != nil {
		return 0, err
	}
	p := db.resolved()
	tag, err := db.pool.Exec(ctx, p.inbox.Query("prune"), cmp.Or(age, db.retention).Seconds(), max)
	if err != nil {
		return 0, translate(err)
	}
	removed := int(tag.RowsAffected())
	tag, err = db.pool.Exec(ctx, p.unique.Query("prune"), max-removed)
	return removed + int(tag.RowsAffected()), translate(err)
}

// MaxConns returns how many connections the pool may open. A worker needs one for each of
// its handlers with an inbox, and one to renew leases and settle: with fewer, leases end
// while their handlers run.
func (db *DB) MaxConns() int { return int(db.pool.Config().MaxConns) }
