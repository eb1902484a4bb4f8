package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

const (
	// A transaction promotes so many delayed messages at the most, so that dispatchers
	// wait for milliseconds.
	promoteRows, promoteBytes = 1000, 4 << 20
	// promoteTimeout bounds it: the deadline of a claim may be near.
	promoteTimeout = 30 * time.Second
	// heldWait is how long a promoter waits for a lock. The server counts
	// seconds.
	heldWait = time.Second
	// heldPause is how long messages are left alone whose lock was held.
	heldPause = 20 * time.Millisecond
)

// A promoter is this process's position among due delayed messages: it passes messages
// whose dispatch locks open transactions hold.
type promoter struct {
	usual rowSize // of delayed messages

	mu   sync.Mutex
	due  string // of the last message that was looked at; empty at the start
	id   int64
	held []gate

	next time.Time // when to begin at the start again
	wait time.Time // when to wait in line for a lock again
}

// promote moves a batch of due delayed messages to the outbox or their queue. Messages
// of a bucket whose lock an open transaction holds stay until a later call: to wait for
// it would hold up a relay, and with the locks held meanwhile every dispatcher.
func (db *DB) promote(ctx context.Context) error {
	p := &db.promoter
	if !p.mu.TryLock() {
		return nil // another worker is at it
	}
	defer p.mu.Unlock()
	if p.due == "" && time.Now().Before(p.next) {
		return nil
	}
	var due bool
	if err := db.pool.QueryRowContext(ctx, db.outbox.Query("any_due")).Scan(&due); err != nil || !due {
		return translate(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), promoteTimeout)
	defer cancel()
	more := false
	err := db.inTx(ctx, func(tx *sql.Tx) (err error) {
		more, err = db.promoteBatch(ctx, tx, p)
		return err
	})
	if err == nil && !more && len(p.held) > 0 {
		p.next = time.Now().Add(heldPause)
		if now := time.Now(); now.After(p.wait) {
			p.wait = now.Add(5 * heldWait)
			err = db.promoteHeld(ctx, p.held[rand.IntN(len(p.held))])
		}
	}
	if !more || err != nil {
		p.due, p.id, p.held = "", 0, nil
	}
	if err != nil {
		return fmt.Errorf("promote delayed messages: %w", translate(err))
	}
	return nil
}

// promoteHeld waits for one lock, and holds no other: where transactions follow
// each other closely it is never free.
func (db *DB) promoteHeld(ctx context.Context, g gate) error {
	err := db.inTx(ctx, func(tx *sql.Tx) error {
		var usual int
		if err := tx.QueryRowContext(ctx, db.serving.Query("lock_wait")).Scan(&usual); err != nil {
			return err
		}
		wait := func(ctx context.Context, seconds int) error {
			_, err := tx.ExecContext(ctx, db.serving.Query("set_lock_wait"), seconds)
			return err
		}
		err := wait(ctx, int(heldWait.Seconds()))
		if err == nil {
			err = db.run(ctx, tx, script{db.bucketCount(), []statement{db.locking([]gate{g})}})
		}
		if err = errors.Join(err, wait(context.WithoutCancel(ctx), usual)); err != nil { // the connection is used after this
			return err
		}
		_, err = db.promoteBatch(ctx, tx, &promoter{})
		return err
	})
	if is(err, errLockWait) {
		return nil
	}
	return err
}

// promoteBatch promotes a batch in order of the time it is due, and reports whether
// there may be more. It holds the dispatch locks, because the ids that messages get now
// must be commit-ordered, and the number of buckets must not change meanwhile. The bucket
// is the key's present one.
func (db *DB) promoteBatch(ctx context.Context, tx *sql.Tx, p *promoter) (more bool, err error) {
	var only int
	err = tx.QueryRowContext(ctx, db.outbox.Query("promoter")).Scan(&only)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil // another process is at it
	}
	if err != nil {
		return false, err
	}
	buckets := db.bucketCount()
	seen, locks, more, err := db.due(ctx, tx, p, buckets)
	if err != nil {
		return false, err
	}
	mine, err := db.freeGates(ctx, tx, locks, buckets)
	if err != nil {
		return false, err
	}
	var ids []int64
	for _, m := range seen {
		if m.gate.bucket == unkeyed || slices.Contains(mine, m.gate) {
			ids = append(ids, m.id)
		}
	}
	for _, g := range locks {
		if !slices.Contains(mine, g) {
			p.held = append(p.held, g)
		}
	}
	if len(ids) == 0 {
		return more, nil
	}
	if _, err := tx.ExecContext(ctx, "SAVEPOINT waybill_promotion"); err != nil {
		return false, err
	}
	err = db.move(ctx, tx, ids, buckets)
	if !refusesRecord(err) {
		return more, err
	}
	if _, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT waybill_promotion"); err != nil { // one table may have its messages already
		return false, err
	}
	for _, m := range seen { // in order
		if !slices.Contains(ids, m.id) {
			continue
		}
		if err = db.move(ctx, tx, []int64{m.id}, buckets); refusesRecord(err) {
			_, err = tx.ExecContext(ctx, db.outbox.Query("refuse"), m.id)
		}
		if err != nil {
			return false, err
		}
	}
	return more, nil
}

// move promotes messages. After an error some of its statements may have happened.
func (db *DB) move(ctx context.Context, tx *sql.Tx, ids []int64, buckets int) error {
	in := jsonIDs(ids)
	for name, args := range map[string][]any{"promote_keyed": {buckets, in}, "promote_unkeyed": {in}, "promote_queued": {in}} {
		if _, err := tx.ExecContext(ctx, db.outbox.Query(name), args...); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, db.outbox.Query("promoted"), in)
	return err
}

// A delayedMessage is due.
type delayedMessage struct {
	id   int64
	gate gate // of the bucket that its key has now
}

// due reads a batch behind p, and returns the locks it needs, but for p.held. It asks for
// as many messages as are likely to be in promoteBytes: the server reads a whole body for
// its length.
func (db *DB) due(ctx context.Context, tx *sql.Tx, p *promoter, buckets int) (seen []delayedMessage, locks []gate, more bool, err error) {
	from, bytes, limit := cmp.Or(p.due, "1000-01-01 00:00:00"), 0, min(promoteRows, db.promoter.usual.rowsIn(promoteBytes))
	err = each(ctx, tx, db.outbox.Query("due"), func(rows *sql.Rows) error {
		m := delayedMessage{gate: gate{bucket: unkeyed}}
		var due, key string
		var size int
		if err := rows.Scan(&m.id, &due, &m.gate.transport, &key, &m.gate.name, &size); err != nil || more {
			return err
		}
		db.promoter.usual.learn(size)
		if more = len(seen) > 0 && bytes+size > promoteBytes; more {
			return nil
		}
		bytes, p.due, p.id = bytes+size, due, m.id
		if key != "" {
			n := queueBuckets
			if m.gate.transport != 0 {
				n, m.gate.name = buckets, gateName(m.gate.name, buckets)
			}
			m.gate.bucket = int16(outbox.Bucket(key, n))
			if !slices.Contains(locks, m.gate) && !slices.Contains(p.held, m.gate) {
				locks = append(locks, m.gate)
			}
		}
		seen = append(seen, m)
		return nil
	}, from, from, p.id, limit)
	slices.SortFunc(locks, gate.compare)
	return seen, locks, more || len(seen) == limit, err
}

// freeGates locks the free ones of the gates, and returns them.
func (db *DB) freeGates(ctx context.Context, tx *sql.Tx, locks []gate, buckets int) (mine []gate, err error) {
	if len(locks) == 0 {
		return nil, nil
	}
	of := db.locking(locks)
	s := fill(db.dispatching.Query("lock_free_gates"), clause{of.text, of.args})
	err = each(ctx, tx, s.text, func(rows *sql.Rows) error {
		var g gate
		if err := rows.Scan(&g.transport, &g.bucket); err != nil {
			return err
		}
		at, ok := slices.BinarySearchFunc(locks, g, gate.compare)
		if !ok {
			return fmt.Errorf("gate %d of transport %d was not asked for", g.bucket, g.transport)
		}
		mine = append(mine, locks[at])
		return nil
	}, s.args...)
	if err != nil || len(mine) == len(locks) {
		return mine, err
	}
	return mine, db.sameBuckets(ctx, tx, buckets)
}
