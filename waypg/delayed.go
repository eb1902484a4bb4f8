package waypg

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// moveBatch is how many delayed messages one statement moves, so that
// dispatchers wait for milliseconds.
const moveBatch = 1000

// heldWait is how long a mover waits in line for a dispatch lock.
const heldWait = 200 * time.Millisecond

// upkeepDelayed moves delayed messages where any is due.
func (db *DB) upkeepDelayed(ctx context.Context, p *place) error {
	var due bool
	if err := db.pool.QueryRow(ctx, p.outbox.Query("any_due")).Scan(&due); err != nil || !due {
		return translate(err)
	}
	return db.moveDelayed(ctx, p)
}

// moveDelayed moves delayed messages that are due to where they go. Those of a
// bucket whose dispatch lock an open transaction holds stay where they are until a
// later call: a mover that waited for it would hold up a relay, and with the locks
// it has everybody who dispatches.
func (db *DB) moveDelayed(ctx context.Context, p *place) error {
	if !db.moving.Due(time.Now()) {
		return nil
	}
	held, err := db.moveFree(ctx, p)
	if err == nil && len(held) > 0 && db.moving.Held(time.Now(), heldWait) {
		err = db.moveHeld(ctx, p, held[rand.IntN(len(held))])
	}
	if err != nil {
		return fmt.Errorf("move delayed messages: %w", translate(err))
	}
	return nil
}

// A passage is how far a mover has come.
type passage struct {
	due  time.Time // of the last message that was looked at
	id   int64
	held []int32 // dispatch locks of others

	moved int
}

// moveFree moves what it can without waiting, and returns the locks that others
// hold.
func (db *DB) moveFree(ctx context.Context, p *place) ([]int32, error) {
	at := passage{held: []int32{}}
	for more := true; more; {
		err := pgx.BeginTxFunc(ctx, db.pool, readCommitted, func(tx pgx.Tx) (err error) {
			more, err = at.move(ctx, tx, p)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return at.held, nil
}

// moveHeld waits in line for one lock, with no other in hand: where transactions
// follow each other closely it is never free.
func (db *DB) moveHeld(ctx context.Context, p *place, lock int32) error {
	err := pgx.BeginTxFunc(ctx, db.pool, readCommitted, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, p.outbox.Query("wait_for_lock"), p.namespace, lock, fmt.Sprint(heldWait.Milliseconds())); err != nil {
			return err
		}
		at := passage{held: []int32{}}
		for more := true; more && at.moved == 0; {
			var err error
			if more, err = at.move(ctx, tx, p); err != nil {
				return err
			}
		}
		return nil // what is left is moved next time
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == lockNotAvailable {
		return nil
	}
	return err
}

const lockNotAvailable = "55P03"

// move moves a batch, and reports whether there may be more.
func (at *passage) move(ctx context.Context, tx pgx.Tx, p *place) (more bool, err error) {
	var seen, moved int
	var held []int32
	err = tx.QueryRow(ctx, p.outbox.Query("move_due"), p.namespace, moveBatch, at.held, at.due, at.id).Scan(&seen, &moved, &at.due, &at.id, &held)
	at.moved, at.held = at.moved+moved, append(at.held, held...)
	return seen == moveBatch, err
}
