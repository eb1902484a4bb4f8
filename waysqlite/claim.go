package waysqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/outbox"
)

// cursor is the read position of a transport's keyed rows. It only saves reading,
// and is valid for one version of the transport's blocked keys: an unblocked key
// has rows below it.
type cursor struct {
	version int64
	after   int64  // all rows up to here are of blocked keys
	hot     string // the key that filled the last claim, or empty
	past    int64  // all rows up to here are of hot or of blocked keys
	turn    bool   // the next claim leaves the hot key out
}

// part is one part of a transport, with at most one open claim.
type part struct {
	transport string
	part      outbox.Part
}

// Claim implements outbox.Store. No transaction is open while the relay publishes:
// one process relays the file, and its parts are disjoint. A key has an entry from
// the first refusal of its head until the head leaves the outbox; meanwhile its
// rows are not Keyed.
func (db *DB) Claim(ctx context.Context, transport string, p outbox.Part, limit outbox.ClaimLimit) (_ outbox.Claim, err error) {
	if p == outbox.Keyed {
		if err := db.promote(ctx); err != nil {
			return nil, err
		}
	}
	c := &claim{db: db, part: part{transport, p}}
	if !db.hold(c.part) {
		return c, nil // another relay of this process has it
	}
	defer func() {
		if err != nil || len(c.rows) == 0 {
			db.letGo(c.part)
		}
	}()
	// The snapshot is taken after hold, or it could show rows that the last holder
	// has published since.
	pool, err := db.readPool(ctx)
	if err != nil {
		return nil, err
	}
	tx, err := pool.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, translate(err)
	}
	defer func() { _ = tx.Rollback() }()
	var at state
	err = tx.QueryRowContext(ctx, db.outboxSQL.Query("transport"), transport).Scan(&c.transport, &at.version, &at.blocked, &at.now)
	if errors.Is(err, sql.ErrNoRows) {
		return c, nil // nothing was dispatched to it yet
	}
	if err != nil {
		return nil, translate(err)
	}
	switch p {
	case outbox.Keyed:
		err = c.readKeyed(ctx, tx, at, limit)
	case outbox.Unkeyed:
		_, err = c.read(ctx, tx, limit, "claim_unkeyed", c.transport, limit.Rows)
	case outbox.Retries:
		var orphans bool
		if orphans, err = c.readRetries(ctx, tx, at, limit); err == nil && orphans {
			_ = tx.Rollback() // a pool of New has one connection
			err = c.removeOrphans(ctx)
		}
	}
	return c, err
}

// state is the state of a transport in a claim's snapshot.
type state struct {
	version int64 // of the blocked keys
	blocked bool  // some keys are blocked
	now     int64
}

// hold reserves a part for one claim, and reports whether it was free.
func (db *DB) hold(p part) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	free := !db.claimed[p]
	db.claimed[p] = true
	return free
}

func (db *DB) letGo(p part) {
	db.mu.Lock()
	defer db.mu.Unlock()
	delete(db.claimed, p)
}

// readKeyed reads rows above the cursor, every other time without a hot key.
func (c *claim) readKeyed(ctx context.Context, tx *sql.Tx, at state, limit outbox.ClaimLimit) error {
	c.db.mu.Lock()
	from := c.db.cursors[c.transport]
	c.db.mu.Unlock()
	if from.version != at.version {
		from = cursor{version: at.version}
	}
	if from.hot != "" && from.turn {
		from.turn = false
		if _, err := c.read(ctx, tx, limit, "claim_keyed", c.transport, from.past, from.hot, limit.Rows); err != nil {
			return err
		}
		if len(c.rows) > 0 {
			from.past = c.rows[0].ID - 1
			c.keep(from)
			return nil
		}
	}
	full, err := c.read(ctx, tx, limit, "claim_keyed", c.transport, from.after, "", limit.Rows)
	if err != nil {
		return err
	}
	switch {
	case len(c.rows) > 0:
		from.after = c.rows[0].ID - 1
	case at.blocked:
		if err := tx.QueryRowContext(ctx, c.db.outboxSQL.Query("last_keyed"), c.transport).Scan(&from.after); err != nil {
			return translate(err)
		}
	}
	if !at.blocked {
		from.after = 0 // reading from the start costs nothing
	}
	if hot := c.onlyKey(); !full || hot == "" {
		from.hot, from.past = "", 0
	} else {
		if hot != from.hot {
			from.hot, from.past = hot, c.rows[len(c.rows)-1].ID
		}
		from.turn = true
	}
	c.keep(from)
	return nil
}

func (c *claim) keep(at cursor) {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	c.db.cursors[c.transport] = at
}

// onlyKey returns the common key of at least two rows, or empty.
func (c *claim) onlyKey() string {
	if len(c.rows) < 2 {
		return ""
	}
	key := c.rows[0].Record.Key
	if slices.ContainsFunc(c.rows, func(row outbox.ClaimedRow) bool { return row.Record.Key != key }) {
		return ""
	}
	return key
}

// maxRetries bounds a claim of retries, which are published one at a time.
// longestDelay bounds a retry's delay.
const (
	maxRetries   = 64
	longestDelay = time.Hour
)

// readRetries reads the heads of due entries. Without any, it reports whether there are orphans:
// entries whose row is gone.
func (c *claim) readRetries(ctx context.Context, tx *sql.Tx, at state, limit outbox.ClaimLimit) (orphans bool, err error) {
	if _, err := c.read(ctx, tx, limit, "claim_retries", c.transport, at.now, longestDelay.Microseconds(), min(limit.Rows, maxRetries)); err != nil {
		return false, err
	}
	if len(c.rows) > 0 {
		slices.SortFunc(c.rows, func(a, b outbox.ClaimedRow) int { return cmp.Compare(a.ID, b.ID) })
		return false, nil
	}
	err = tx.QueryRowContext(ctx, c.db.outboxSQL.Query("any_orphan"), c.transport, at.now).Scan(&orphans)
	return orphans, translate(err)
}

// removeOrphans unblocks the keys of orphans.
func (c *claim) removeOrphans(ctx context.Context) error {
	return c.db.write(ctx, func(tx *txn) error {
		if _, err := tx.exec(ctx, c.db.outboxSQL.Query("delete_orphans"), c.transport); err != nil {
			return err
		}
		return c.bump(ctx, tx)
	})
}

// read fills c with the result of a query, and reports whether it reached the
// limit.
func (c *claim) read(ctx context.Context, tx *sql.Tx, limit outbox.ClaimLimit, query string, args ...any) (full bool, err error) {
	rows, err := tx.QueryContext(ctx, c.db.outboxSQL.Query(query), args...)
	if err != nil {
		return false, translate(err)
	}
	defer func() { _ = rows.Close() }()
	size := 0
	for rows.Next() {
		row := outbox.ClaimedRow{Record: &waybill.Record{}}
		rec := row.Record
		var meta string
		var created int64
		if err := rows.Scan(&row.ID, &rec.ID, &rec.Name, &rec.Key, &created, &meta, &rec.Body, &row.Failures); err != nil {
			return false, err
		}
		if size += len(rec.Body) + len(meta); size > limit.Bytes && len(c.rows) > 0 {
			return true, nil
		}
		rec.DispatchedAt = micros(created)
		rec.Problem = headers.Decode(rec, meta)
		c.rows = append(c.rows, row)
	}
	return len(c.rows) == limit.Rows, translate(rows.Err())
}

// A claim holds its part until Settle.
type claim struct {
	db        *DB
	part      part
	transport int64
	rows      []outbox.ClaimedRow
}

// Rows implements outbox.Claim.
func (c *claim) Rows() []outbox.ClaimedRow { return c.rows }
