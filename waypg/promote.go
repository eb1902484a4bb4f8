package waypg

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// promoteRows and promoteBytes bound the delayed messages that one transaction
	// promotes, so that dispatchers wait for milliseconds.
	promoteRows, promoteBytes = 1000, 4 << 20
	// promoteTime bounds a batch. The claim that it is part of may have less time.
	promoteTime = 30 * time.Second
	// heldWait is how long a promoter waits in line for a dispatch lock.
	heldWait = 200 * time.Millisecond
	// refusedBatch is how many messages are promoted one by one after a batch was refused.
	refusedBatch = 100

	lockNotAvailable = "55P03"
)

// A promoter remembers how far the promotion of delayed messages has come that had to
// leave some behind.
type promoter struct {
	mu   sync.Mutex
	due  time.Time // of the last message that was looked at
	id   int64
	held []int32 // dispatch locks of other sessions, met since the beginning
}

// promoteDue promotes delayed messages where any is due.
func (db *DB) promoteDue(ctx context.Context, p *place) error {
	var due bool
	if err := db.pool.QueryRow(ctx, p.outbox.Query("any_due")).Scan(&due); err != nil || !due {
		return translate(err)
	}
	return db.promote(ctx, p)
}

// promote moves a batch of delayed messages that are due to their targets. Those of
// a bucket whose dispatch lock an open transaction holds stay for a later round: a
// promoter that waited for it would hold up a relay, and with the locks it has every
// dispatcher.
func (db *DB) promote(ctx context.Context, p *place) error {
	if !db.pace.Due(time.Now()) || !db.promoter.mu.TryLock() {
		return nil
	}
	defer db.promoter.mu.Unlock()
	at := &db.promoter
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), promoteTime)
	defer cancel()
	_, more, err := at.batch(ctx, db, p, promoteRows, nil)
	if refusesRecord(err) {
		more, err = true, at.oneByOne(ctx, db, p)
	}
	if err == nil && !more && len(at.held) > 0 && db.pace.Held(time.Now(), heldWait) {
		err = db.promoteHeld(ctx, p, at.held[rand.IntN(len(at.held))])
	}
	if err != nil || !more || len(at.held) == 0 {
		at.due, at.id, at.held = time.Time{}, 0, nil
	}
	if err != nil {
		return fmt.Errorf("promote delayed messages: %w", translate(err))
	}
	if more {
		db.due.Store(true)
	}
	return nil
}

// batch promotes up to limit messages, or the one of that id. More says that there
// may be others behind them.
func (at *promoter) batch(ctx context.Context, db *DB, p *place, limit int, only *int64) (seen int, more bool, err error) {
	err = pgx.BeginTxFunc(ctx, db.pool, readCommitted, func(tx pgx.Tx) error {
		seen, _, more, err = at.move(ctx, tx, p, limit, only)
		return err
	})
	return seen, more, err
}

func (at *promoter) move(ctx context.Context, tx pgx.Tx, p *place, limit int, only *int64) (seen, moved int, more bool, err error) {
	if at.held == nil {
		at.held = []int32{} // not NULL
	}
	var held []int32
	due, id := at.due, at.id
	err = tx.QueryRow(ctx, p.outbox.Query("promote"), p.namespace, limit, promoteBytes, at.held, due, id, only).Scan(&seen, &moved, &more, &due, &id, &held)
	if err == nil && only == nil {
		at.due, at.id = due, id
	}
	at.held = append(at.held, held...)
	return seen, moved, more && seen > 0, err
}

// oneByOne promotes the messages of a batch that was refused, and puts those aside
// that the target refuses.
func (at *promoter) oneByOne(ctx context.Context, db *DB, p *place) error {
	at.due, at.id, at.held = time.Time{}, 0, nil
	rows, err := db.pool.Query(ctx, p.outbox.Query("due_ids"), refusedBatch)
	if err != nil {
		return err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	for _, id := range ids {
		seen, _, refused := at.batch(ctx, db, p, 1, &id)
		switch {
		case refusesRecord(refused):
			_, err = db.pool.Exec(ctx, p.outbox.Query("refuse_delayed"), id)
		case refused != nil:
			err = refused
		case seen == 0: // another promoter is at work: messages behind this one could overtake it
			return nil
		}
		if err != nil {
			return err
		}
	}
	return err
}

// promoteHeld waits in line for one lock, with no other held: where transactions
// follow each other closely it is never free.
func (db *DB) promoteHeld(ctx context.Context, p *place, lock int32) error {
	err := pgx.BeginTxFunc(ctx, db.pool, readCommitted, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, p.outbox.Query("wait_for_lock"), p.namespace, lock, fmt.Sprint(heldWait.Milliseconds())); err != nil {
			return err
		}
		at := promoter{}
		for more, moved := true, 0; more && moved == 0; {
			var err error
			if _, moved, more, err = at.move(ctx, tx, p, promoteRows, nil); err != nil {
				return err
			}
		}
		return nil // later rounds promote the rest
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == lockNotAvailable {
		return nil
	}
	return err
}
