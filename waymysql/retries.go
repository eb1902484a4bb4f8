package waymysql

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/outbox"
)

// An entry is a refused key, route or row without a key.
type entry struct {
	transport  int16
	route, key string
	row        int64
	bucket     int16
	failures   int
}

// id are the values of its primary key.
func (e *entry) id() []any {
	return []any{e.transport, []byte(e.route), []byte(e.key), e.row}
}

// versioned is the bucket whose version changes with the entry.
func (e *entry) versioned() int16 {
	if e.route != "" {
		return unkeyed
	}
	return e.bucket
}

// maxRetries is how many entries one claim takes, of up to dueRetries that it finds: other
// relays may have the first.
const (
	maxRetries = 64
	dueRetries = 4 * maxRetries
)

// farthest returns how many microseconds ahead an entry can be due: an entry that is
// further ahead was written before the clock went back.
func (db *DB) farthest() int64 {
	return max(time.Hour, 2*time.Duration(db.longest.Load())).Microseconds()
}

// retryAfter notes a delay of a retry, and returns it in microseconds.
func (db *DB) retryAfter(d time.Duration) int64 {
	for longest := db.longest.Load(); int64(d) > longest && !db.longest.CompareAndSwap(longest, int64(d)); {
		longest = db.longest.Load()
	}
	return d.Microseconds()
}

// claimRetries locks due entries. The lock is the sole right to publish their rows: a
// claim of keyed rows leaves out keys with an entry. again is true if entries without a
// row were removed.
func (c *claim) claimRetries(ctx context.Context, limit outbox.ClaimLimit) (again bool, err error) {
	var due, paused bool
	var name string
	if err := c.conn.QueryRowContext(ctx, c.db.claiming.Query("any_retry"), c.on.Transport, c.on.Transport, c.db.farthest(), c.on.Transport).Scan(&due, &paused, &name); err != nil || !c.isNamed(name) || !due || paused {
		return false, err
	}
	if err := c.begin(ctx); err != nil {
		return false, err
	}
	n := min(limit.Rows, maxRetries)
	found, err := c.lockEntries(ctx, n)
	if err != nil || len(found) == 0 {
		return false, err
	}
	entries, body := map[rowRef]*entry{}, c.body(n, limit)
	var branches []clause
	for _, e := range found {
		at := rowRef{e.bucket, e.row}
		entries[at] = e
		branches = append(branches, c.rowAt(at, body))
	}
	rows, err := c.read(ctx, unionAll(branches), limit)
	if err != nil {
		return false, err
	}
	for _, r := range rows {
		at := rowRef{r.Bucket, r.Claimed.ID}
		e := entries[at]
		delete(entries, at)
		r.Claimed.Failures, r.Claimed.Route = e.failures, e.route != ""
		c.add(r, claimedRef{r.Bucket, r.Claimed.ID, 1, e})
	}
	return c.removeGone(ctx, entries)
}

// lockEntries locks up to n due entries, and skips entries that other relays try.
func (c *claim) lockEntries(ctx context.Context, n int) (locked []*entry, err error) {
	var due []clause
	err = c.query(ctx, c.fill("due_retries", c.on.Transport, c.db.farthest(), c.on.Transport, dueRetries), func(rows *sql.Rows) error {
		var route, key string
		var row int64
		err := rows.Scan(&route, &key, &row)
		due = append(due, c.fill("due_retry", c.on.Transport, literals(route), literals(key), row, c.db.farthest()))
		return err
	})
	for err == nil && len(due) > 0 && len(locked) < n {
		some := due[:min(len(due), n-len(locked))]
		due = due[len(some):]
		err = c.query(ctx, unionAll(some), func(rows *sql.Rows) error {
			e := &entry{transport: c.on.Transport}
			err := rows.Scan(&e.route, &e.key, &e.row, &e.bucket, &e.failures)
			locked = append(locked, e)
			return err
		})
	}
	return locked, err
}

// rowAt returns the statement that reads the row of an entry.
func (c *claim) rowAt(at rowRef, body clause) clause {
	if at.bucket == unkeyed {
		return c.fill("unkeyed_row", body, c.on.Transport, at.id)
	}
	return c.fill("keyed_row", body, c.on.Transport, at.bucket, at.id)
}

// removeGone removes entries whose row an operator has deleted: rows that waited for it
// can be claimed then. An entry whose bucket is locked stays until the next time.
func (c *claim) removeGone(ctx context.Context, entries map[rowRef]*entry) (again bool, err error) {
	var branches []clause
	for at := range entries { // some rows may only have been too large
		branches = append(branches, c.rowAt(at, clause{text: "FALSE"}))
	}
	if len(branches) == 0 {
		return false, nil
	}
	if err := c.query(ctx, unionAll(branches), func(rows *sql.Rows) error {
		r, _, err := scanRow(rows)
		delete(entries, rowRef{r.Bucket, r.Claimed.ID})
		return err
	}); err != nil {
		return false, err
	}
	for _, e := range entries {
		if e.versioned() != unkeyed || e.route != "" {
			locked, err := c.lock(ctx, []int16{e.versioned()}, 1)
			if err != nil {
				return false, err
			}
			if len(locked) == 0 {
				continue
			}
			if err := c.do(ctx, "bump", e.transport, e.versioned()); err != nil {
				return false, err
			}
		}
		if err := c.do(ctx, "unblock", e.id()...); err != nil {
			return false, err
		}
		again = true
	}
	if again { // the locks of buckets are not for as long as it takes to publish
		c.rows = nil
		err = c.commit(ctx)
	}
	return again, err
}

// add keeps a row without an order.
func (c *claim) add(r readpos.Row, at claimedRef) {
	readpos.Decode(r.Claimed.Record, r.Headers)
	c.rows = append(c.rows, r.Claimed)
	c.at[r.Claimed.Record] = at
}
