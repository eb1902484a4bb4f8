package waysqlite

import (
	"context"
	"fmt"
)

// promoteRows and promoteBytes bound a batch of delayed messages, so that writers wait
// for milliseconds.
const promoteRows, promoteBytes = 1000, 4 << 20

// promote moves one batch of due messages to their targets. A claim promotes one
// batch only, so that rows in the outbox do not wait for all due messages.
func (db *DB) promote(ctx context.Context) error {
	var due bool
	if err := db.readRow(ctx, db.outboxSQL.Query("any_due"), nil, []any{&due}); err != nil || !due {
		return err
	}
	ctx = context.WithoutCancel(ctx) // a batch cut off by its context would be repeated for ever
	err := db.promoteBatch(ctx, false)
	if refusesRecord(err) {
		err = db.promoteBatch(ctx, true)
	}
	if err != nil {
		return fmt.Errorf("promote delayed messages: %w", err)
	}
	return nil
}

// promoteBatch promotes due messages in their order. With each, it promotes one at
// a time and marks the refused ones, which fail the whole batch.
func (db *DB) promoteBatch(ctx context.Context, each bool) error {
	return db.write(ctx, func(tx *txn) error {
		due, err := ids(tx.QueryContext(ctx, db.outboxSQL.Query("due"), promoteRows, promoteBytes))
		if err != nil {
			return err
		}
		if !each {
			return db.move(ctx, tx, due)
		}
		for _, id := range due {
			err := db.move(ctx, tx, []int64{id})
			if refusesRecord(err) { // SQLite has undone the statement
				_, err = tx.exec(ctx, db.outboxSQL.Query("refuse_due"), id)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// move moves delayed messages to the outbox or a queue.
func (db *DB) move(ctx context.Context, tx *txn, due []int64) error {
	for _, name := range []string{"due_to_outbox", "due_to_queue", "delete_due"} {
		if _, err := tx.exec(ctx, db.outboxSQL.Query(name), list(due)); err != nil {
			return err
		}
	}
	return nil
}
