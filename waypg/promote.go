package waypg

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// promoteRows and promoteBytes bound the delayed messages that one transaction
	// promotes, so that dispatchers wait for milliseconds.
	promoteRows, promoteBytes = 1000, 4 << 20
	// promoteTime bounds a batch, which may outlive the context of its claim.
	promoteTime = 30 * time.Second
	// heldWait bounds a promoter's wait for a dispatch lock.
	heldWait = 200 * time.Millisecond
	// heldPause is the delay of the next promotion after one that met held locks.
	heldPause = 20 * time.Millisecond
	// refusedBatch bounds the messages promoted one by one after a refused batch.
	refusedBatch = 100
)

// A promoter is the position of a promotion that left messages behind.
type promoter struct {
	mu   sync.Mutex
	due  time.Time // of the last message read
	id   int64
	held []int32 // dispatch locks of other sessions, found since the beginning

	next time.Time // earliest next promotion
	wait time.Time // earliest next wait for a lock
}

// heldUp records that messages were left because their locks were held, and reports
// whether to wait for one of the locks. At most a fifth of the time is spent waiting.
func (at *promoter) heldUp(now time.Time) bool {
	at.next = now.Add(heldPause)
	if now.Before(at.wait) {
		return false
	}
	at.wait = now.Add(5 * heldWait)
	return true
}

// promoteDue promotes delayed messages if any is due.
func (db *DB) promoteDue(ctx context.Context, p *catalog) error {
	var due bool
	if err := db.pool.QueryRow(ctx, p.outbox.Query("any_due")).Scan(&due); err != nil || !due {
		return translate(err)
	}
	return db.promote(ctx, p)
}

// promote moves a batch of due messages to their targets. It skips buckets whose
// dispatch lock an open transaction holds, until a later round: waiting for the
// lock would hold up a relay and, with the locks already taken, every dispatcher.
func (db *DB) promote(ctx context.Context, p *catalog) error {
	at := &db.promoter
	if !at.mu.TryLock() {
		return nil
	}
	defer at.mu.Unlock()
	if time.Now().Before(at.next) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), promoteTime)
	defer cancel()
	_, more, err := at.batch(ctx, db, p, promoteRows, nil)
	if refusesRecord(err) {
		more, err = true, at.oneByOne(ctx, db, p)
	}
	if err == nil && !more && len(at.held) > 0 && at.heldUp(time.Now()) {
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

// batch promotes up to limit messages, or only one id. more is true if later
// messages may be due.
func (at *promoter) batch(ctx context.Context, db *DB, p *catalog, limit int, only *int64) (seen int, more bool, err error) {
	err = db.inTx(ctx, func(tx pgx.Tx) error {
		seen, _, more, err = at.move(ctx, tx, p, limit, only)
		return err
	})
	return seen, more, err
}

func (at *promoter) move(ctx context.Context, tx pgx.Tx, p *catalog, limit int, only *int64) (seen, moved int, more bool, err error) {
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

// oneByOne promotes the messages of a refused batch, and postpones for ever the
// ones that the target refuses.
func (at *promoter) oneByOne(ctx context.Context, db *DB, p *catalog) error {
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
		case seen == 0: // another promoter has the lock: a later message could overtake this one
			return nil
		}
		if err != nil {
			return err
		}
	}
	return err
}

// promoteHeld queues for one held lock, with no other held, and promotes: where
// transactions follow each other closely a try never succeeds.
func (db *DB) promoteHeld(ctx context.Context, p *catalog, lock int32) error {
	err := db.inTx(ctx, func(tx pgx.Tx) error {
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
	if hasCode(err, lockNotAvailable) {
		return nil
	}
	return err
}
