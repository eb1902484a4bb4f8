package waysqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// AddTransports implements outbox.Writer.
func (db *DB) AddTransports(ctx context.Context, names ...string) error {
	if err := db.checkSchema(ctx); err != nil {
		return err
	}
	err := db.write(ctx, func(tx *sql.Tx) error {
		for _, name := range names {
			if _, err := tx.ExecContext(ctx, db.outboxSQL.Query("add_lane"), name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("transports: %w", err)
	}
	rows, err := db.reader.QueryContext(ctx, db.outboxSQL.Query("lanes"))
	if err != nil {
		return translate(err)
	}
	defer func() { _ = rows.Close() }()
	db.mu.Lock()
	defer db.mu.Unlock()
	for rows.Next() {
		var id int64
		var name string
		if err := rows.Scan(&id, &name); err != nil {
			return err
		}
		db.lanes[name] = id
	}
	return translate(rows.Err())
}

// laneOf returns the number of a row's transport, and 0 for a queue of this
// database.
func (db *DB) laneOf(row outbox.Row) (int64, error) {
	if row.Queue != "" {
		return 0, nil
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	lane, ok := db.lanes[row.Transport]
	if !ok {
		return 0, fmt.Errorf("unknown transport %q", row.Transport)
	}
	return lane, nil
}

// write runs fn in a transaction of the writer; ctx ends the wait for it, but
// not its commit. Inside a unit of work, which has the writer's only
// connection, it would wait for itself and is refused.
func (db *DB) write(ctx context.Context, fn func(tx *sql.Tx) error) error {
	if ctx.Value(insideKey{db}) != nil {
		return waybill.ErrNestedTransaction
	}
	conn, err := db.writerConn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return translate(err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(tx); err != nil {
		return translate(err)
	}
	return translate(tx.Commit())
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

// Wake implements outbox.Store.
func (db *DB) Wake(transport string) <-chan struct{} { return db.wake(transport) }

// moveDue moves delayed messages that are due to where they go.
func (db *DB) moveDue(ctx context.Context) error {
	var now int64
	var due bool
	if err := db.reader.QueryRowContext(ctx, db.outboxSQL.Query("now")).Scan(&now); err != nil {
		return translate(err)
	}
	if err := db.reader.QueryRowContext(ctx, db.outboxSQL.Query("any_due"), now).Scan(&due); err != nil || !due {
		return translate(err)
	}
	for due {
		err := db.write(ctx, func(tx *sql.Tx) error {
			var last sql.NullInt64 // due_at of the last of a batch, and of its equals
			if err := tx.QueryRowContext(ctx, db.outboxSQL.Query("due_batch"), now, moveBatch).Scan(&last); err != nil || !last.Valid {
				due = false
				return err
			}
			for _, name := range []string{"due_to_outbox", "due_to_queue", "delete_due"} {
				if _, err := tx.ExecContext(ctx, db.outboxSQL.Query(name), last.Int64); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("move delayed messages: %w", err)
		}
	}
	return nil
}

// moveBatch is how many delayed messages one transaction moves, so that writers
// wait for milliseconds.
const moveBatch = 1000

// Left implements outbox.Store.
func (db *DB) Left(ctx context.Context, transport string) (outbox.Left, error) {
	var left outbox.Left
	var lane, version int64
	err := db.reader.QueryRowContext(ctx, db.outboxSQL.Query("lane"), transport).Scan(&lane, &version)
	if errors.Is(err, sql.ErrNoRows) {
		return left, nil
	}
	if err == nil {
		err = db.reader.QueryRowContext(ctx, db.outboxSQL.Query("left"), lane).Scan(&left.Pending, &left.Blocked, &left.Delayed)
	}
	return left, translate(err)
}
