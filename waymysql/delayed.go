package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/outbox"
)

// moveBatch is how many delayed messages one transaction moves, so that
// dispatchers wait for milliseconds.
const moveBatch = 1000

// heldWait is how long a mover waits in line for a gate. The server counts seconds.
const heldWait = time.Second

// upkeepDelayed moves delayed messages that are due to where they go. Those of a
// bucket whose gate an open transaction holds stay where they are until a later
// call: a mover that waited for it would hold up a relay, and with the gates it has
// everybody who dispatches.
func (db *DB) upkeepDelayed(ctx context.Context) error {
	if !db.moving.Due(time.Now()) {
		return nil
	}
	var due bool
	if err := db.pool.QueryRowContext(ctx, db.outbox.Query("any_due")).Scan(&due); err != nil || !due {
		return translate(err)
	}
	held, err := db.moveFree(ctx)
	if err == nil && len(held) > 0 && db.moving.Held(time.Now(), heldWait) {
		err = db.moveHeld(ctx, held[rand.IntN(len(held))])
	}
	if err != nil {
		return fmt.Errorf("move delayed messages: %w", translate(err))
	}
	return nil
}

// A passage is how far a mover has come.
type passage struct {
	due  string // of the last message that was looked at; empty at the start
	id   int64
	held []gate // by others

	moved int
}

// moveFree moves what it can without waiting, and returns the gates that others
// hold.
func (db *DB) moveFree(ctx context.Context) ([]gate, error) {
	var at passage
	for more := true; more; {
		err := db.inTx(ctx, func(tx *sql.Tx) (err error) {
			more, err = db.move(ctx, tx, &at)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return at.held, nil
}

// moveHeld waits in line for one gate, with no other in hand: where transactions
// follow each other closely it is never free.
func (db *DB) moveHeld(ctx context.Context, g gate) error {
	err := db.inTx(ctx, func(tx *sql.Tx) error {
		var usual int
		if err := tx.QueryRowContext(ctx, "SELECT @@SESSION.innodb_lock_wait_timeout").Scan(&usual); err != nil {
			return err
		}
		wait := func(ctx context.Context, seconds int) error {
			_, err := tx.ExecContext(ctx, fmt.Sprintf("SET SESSION innodb_lock_wait_timeout = %d", seconds))
			return err
		}
		err := wait(ctx, int(heldWait.Seconds()))
		if err == nil {
			err = db.lockGates(ctx, tx, []gate{g}, db.bucketCount())
		}
		if err = errors.Join(err, wait(context.WithoutCancel(ctx), usual)); err != nil { // others use the connection after this
			return err
		}
		var at passage
		for more := true; more && at.moved == 0; {
			if more, err = db.move(ctx, tx, &at); err != nil {
				return err
			}
		}
		return nil // what is left is moved next time
	})
	if is(err, errLockWait) {
		return nil
	}
	return err
}

// move moves a batch in order of the time it is due, and reports whether there may
// be more. It holds the gates, because the ids that messages get now must be
// commit-ordered, and the number of buckets must not change meanwhile. The bucket is
// the one that the key has now.
func (db *DB) move(ctx context.Context, tx *sql.Tx, at *passage) (more bool, err error) {
	var mover int
	err = tx.QueryRowContext(ctx, db.outbox.Query("mover")).Scan(&mover)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil // another one is at it
	}
	if err != nil {
		return false, err
	}
	buckets := db.bucketCount()
	seen, locks, err := db.due(ctx, tx, at, buckets)
	if err != nil {
		return false, err
	}
	mine, err := db.freeGates(ctx, tx, locks, buckets)
	if err != nil {
		return false, err
	}
	var ids []int64
	for _, m := range seen {
		if m.gate.bucket == lane.Unkeyed || slices.Contains(mine, m.gate) {
			ids = append(ids, m.id)
		}
	}
	for _, g := range locks {
		if !slices.Contains(mine, g) {
			at.held = append(at.held, g)
		}
	}
	more = len(seen) == moveBatch
	if len(ids) == 0 {
		return more, nil
	}
	at.moved += len(ids)
	tables, in := qualified(db.schema, db.prefix), "("+join(ids)+")"
	for _, statement := range []string{
		"INSERT INTO " + tables + "outbox (lane, bucket, message_id, message_name, partition_key, headers, body, created_at)" +
			fmt.Sprintf(" SELECT lane, CASE WHEN partition_key = '' THEN -1 ELSE CONV(LEFT(SHA2(partition_key, 256), 4), 16, 10) %% %d + CASE WHEN bucket >= %d THEN %[2]d ELSE 0 END END, message_id, message_name, partition_key, headers, body, due_at FROM ", buckets, outbox.Unserialized) + tables + "delayed WHERE lane IS NOT NULL AND id IN " + in + " ORDER BY due_at, id",
		"INSERT INTO " + tables + "queue (queue, message_id, message_name, partition_key, headers, body, created_at)" +
			" SELECT queue, message_id, message_name, partition_key, headers, body, due_at FROM " + tables + "delayed WHERE queue IS NOT NULL AND id IN " + in + " ORDER BY due_at, id",
		"DELETE d FROM " + among(ids) + " STRAIGHT_JOIN " + tables + "delayed AS d FORCE INDEX (PRIMARY) ON d.id = k.id",
	} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return false, err
		}
	}
	return more, nil
}

// A delayedMessage is due.
type delayedMessage struct {
	id   int64
	gate gate // of the bucket that its key has now
}

// due reads a batch from a place on, and which gates it needs that are not known to
// be held.
func (db *DB) due(ctx context.Context, tx *sql.Tx, at *passage, buckets int) (seen []delayedMessage, locks []gate, err error) {
	from := cmp.Or(at.due, "1000-01-01 00:00:00")
	rows, err := tx.QueryContext(ctx, db.outbox.Query("due"), from, from, at.id, moveBatch)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		m := delayedMessage{gate: gate{bucket: lane.Unkeyed}}
		var key string
		if err := rows.Scan(&m.id, &at.due, &m.gate.lane, &key, &m.gate.name); err != nil {
			return nil, nil, err
		}
		at.id = m.id
		if key != "" {
			n := queueBuckets
			if m.gate.lane != 0 {
				n, m.gate.name = buckets, gateName(m.gate.name, buckets)
			}
			m.gate.bucket = int16(outbox.Bucket(key, n))
			if !slices.Contains(locks, m.gate) && !slices.Contains(at.held, m.gate) {
				locks = append(locks, m.gate)
			}
		}
		seen = append(seen, m)
	}
	slices.SortFunc(locks, gate.compare)
	return seen, locks, rows.Err()
}

// freeGates locks those of the gates that nobody holds, and returns them.
func (db *DB) freeGates(ctx context.Context, tx *sql.Tx, locks []gate, buckets int) (mine []gate, err error) {
	if len(locks) == 0 {
		return nil, nil
	}
	s := db.locking(locks)
	rows, err := tx.QueryContext(ctx, "SELECT g.lane, g.bucket"+s.text+" SKIP LOCKED", s.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var g gate
		if err := rows.Scan(&g.lane, &g.bucket); err != nil {
			return nil, err
		}
		at, ok := slices.BinarySearchFunc(locks, g, gate.compare)
		if !ok {
			return nil, fmt.Errorf("gate %d of lane %d was not asked for", g.bucket, g.lane)
		}
		mine = append(mine, locks[at])
	}
	if err := rows.Err(); err != nil || len(mine) == len(locks) {
		return mine, err
	}
	return mine, db.sameBuckets(ctx, buckets)
}
