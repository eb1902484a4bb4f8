package waysqlite

import (
	"context"
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

// Lead implements outbox.Store: one process relays a file. Relays of several
// transports in one process share its right.
func (db *DB) Lead(ctx context.Context) (func(), error) {
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

// KeepsFailures implements outbox.FailureStore.
func (db *DB) KeepsFailures() {}

// Wake implements outbox.Store.
func (db *DB) Wake(transport string, part outbox.Part) <-chan struct{} {
	return db.wakes.Of(transport, part)
}

// Left implements outbox.Store.
func (db *DB) Left(ctx context.Context, transport string) (left outbox.Left, err error) {
	err = db.reader.QueryRowContext(ctx, db.outboxSQL.Query("left"), transport).Scan(&left.Pending, &left.Blocked, &left.Delayed)
	return left, translate(err)
}
