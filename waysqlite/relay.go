package waysqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/waybill-go/waybill/outbox"
)

// AddTransports implements outbox.Writer.
func (db *DB) AddTransports(ctx context.Context, names ...string) error {
	if err := db.checkSchema(ctx); err != nil {
		return err
	}
	err := db.write(ctx, func(tx *txn) error {
		for _, name := range names {
			if _, err := tx.exec(ctx, db.outboxSQL.Query("add_transport"), name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("transports: %w", err)
	}
	return nil
}

// Transports implements outbox.Store.
func (db *DB) Transports(ctx context.Context) ([]string, error) {
	return query(ctx, db, db.outboxSQL.Query("transports"), func(rows *sql.Rows, name *string) error { return rows.Scan(name) })
}

// Traits implements outbox.Store.
func (db *DB) Traits() outbox.StoreTraits { return outbox.StoreTraits{} }

// Report implements outbox.Store: a file has one relay, and no table for reports.
func (db *DB) Report(context.Context, outbox.Report) error { return nil }

// ListenError implements outbox.Store: there are no notifications.
func (db *DB) ListenError() string { return "" }

// StartRelay implements outbox.Store: one process relays a file. Relays of several
// transports in one process share its right.
func (db *DB) StartRelay(ctx context.Context) (func(), error) {
	if err := db.checkSchema(ctx); err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.leaders == 0 {
		lock, err := lockFile(db.path + ".relay")
		if err != nil {
			return nil, err
		}
		db.leaderLock = lock
		clear(db.cursors) // another process may have relayed meanwhile
	}
	db.leaders++
	return func() {
		db.mu.Lock()
		defer db.mu.Unlock()
		if db.leaders--; db.leaders == 0 {
			db.leaderLock.unlock()
		}
	}, nil
}

// Wake implements outbox.Store.
func (db *DB) Wake(transport string, part outbox.Part) <-chan struct{} {
	return db.wakes.Of(transport, part)
}

// Backlog implements outbox.Store.
func (db *DB) Backlog(ctx context.Context, transport string) (backlog outbox.Backlog, err error) {
	err = db.readRow(ctx, db.outboxSQL.Query("backlog"), []any{transport}, []any{&backlog.Pending, &backlog.Blocked, &backlog.Delayed})
	return backlog, err
}
