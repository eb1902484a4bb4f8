package waymysql

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/outbox"
)

// claimKeyed locks buckets in one statement and reads them in a later one. See the
// package's doc.
func (c *claim) claimKeyed(ctx context.Context, limit outbox.ClaimLimit) (again bool, err error) {
	found, again, err := c.probe(ctx)
	if err != nil || again || len(found) == 0 {
		return again, err
	}
	if err := c.begin(ctx); err != nil {
		return false, err
	}
	want := min(limit.Rows, readpos.MaxBuckets, c.db.usual.rowsIn(limit.Bytes))
	locked, err := c.lock(ctx, found, want)
	if err != nil || len(locked) == 0 {
		return false, err
	}
	buckets, routes, again, err := c.readState(ctx, locked)
	if err != nil || again {
		return again, err
	}
	perBucket := max(min(limit.Rows, c.db.usual.rowsIn(limit.Bytes))/len(locked), 1)
	reads := c.batch.Reads(buckets, routes)
	rows, err := c.read(ctx, c.reading(reads, perBucket, limit), limit)
	if err != nil {
		return false, err
	}
	if torn, err := c.torn(ctx, reads, rows); err != nil || torn {
		return torn, err
	}
	return c.batch.Take(rows, perBucket), nil
}

// torn reports whether rows were missing when buckets were read. MariaDB collects the ids
// of open transactions without a lock (trx_sys_t::snapshot_ids in its source). A reader
// that is interrupted there can take a transaction for open, and see the next one, which
// waited for the lock of the first and has ended before the reader came to it. Both have
// ended when the statement after that begins.
func (c *claim) torn(ctx context.Context, reads []readpos.Read, found []readpos.Row) (torn bool, err error) {
	if !c.db.isMariaDB() {
		return false, nil
	}
	rows, last := map[int16]int{}, map[int16]int64{}
	for _, r := range found {
		switch {
		case !r.None:
			rows[r.Bucket]++
			last[r.Bucket] = r.Claimed.ID
		case r.Last != nil:
			last[r.Bucket] = *r.Last
		}
	}
	var branches []clause
	for _, r := range reads {
		if up, ok := last[r.Bucket]; ok {
			join, keys := c.conditions(r)
			branches = append(branches, c.fill("count_keyed", r.Bucket, join, c.on.Transport, r.Bucket, r.After, up, and(keys)))
		}
	}
	if len(branches) == 0 {
		return false, nil
	}
	err = c.query(ctx, unionAll(branches), func(result *sql.Rows) error {
		var bucket int16
		var n int
		err := result.Scan(&bucket, &n)
		torn = torn || n != rows[bucket]
		return err
	})
	return torn, err
}

// maxBranches bounds a statement of a probe.
const maxBranches = 128

// probe returns buckets that have rows behind their positions, in turns. again is true if
// the positions were of other buckets, or of another server or table.
func (c *claim) probe(ctx context.Context) (found []int16, again bool, err error) {
	after, marks, versions := c.batch.View.After()
	if slices.ContainsFunc(versions, func(v int64) bool { return v >= 0 }) {
		if err := c.dropCursors(ctx, after, marks, versions); err != nil {
			return nil, false, err
		}
	}
	raise, err := c.freeBehind(ctx, versions)
	if err != nil {
		return nil, false, err
	}
	ahead := []clause{c.fill("table", c.db.schema, c.db.prefix+"outbox"), c.fill("paused")}
	if len(raise) > 0 {
		ahead = append(ahead, c.fill("any_blocked_route", c.on.Transport))
	}
	var empty []int16 // of raise
	for first := 0; first < len(after) && len(found) < 2*readpos.MaxBuckets; first += maxBranches {
		branches := slices.Clone(ahead)
		for i := first; i < min(first+maxBranches, len(after)); i++ {
			bucket := (i + c.batch.View.Turn) % len(after)
			branches = append(branches, c.fill("next_row", bucket, c.on.Transport, bucket, after[bucket]))
			if raise[int16(bucket)] {
				branches = append(branches, c.fill("any_blocked_key", bucket, c.on.Transport, bucket))
				empty = append(empty, int16(bucket))
			}
		}
		paused := false
		err := c.query(ctx, unionAll(branches), func(rows *sql.Rows) error {
			var branch string
			var bucket int16
			var id sql.NullInt64
			var server sql.NullString
			if err := rows.Scan(&branch, &bucket, &id, &server); err != nil {
				return err
			}
			switch branch {
			case "table":
				again = !c.isValidFor(int(bucket), server.String, id.Int64)
			case "paused":
				paused = true
			case "blocked":
				empty = slices.DeleteFunc(empty, func(b int16) bool { return b == bucket || bucket == unkeyed })
			case "row":
				if id.Valid {
					found = append(found, bucket)
					empty = slices.DeleteFunc(empty, func(b int16) bool { return b == bucket })
				}
			}
			return nil
		})
		if err != nil || paused || again {
			return nil, again, err
		}
	}
	c.on.Raise(c.batch.View, empty)
	return found, false, nil
}

// isValidFor reports whether the positions are of so many buckets, and of this server and table,
// whose next id is given.
func (c *claim) isValidFor(buckets int, server string, next int64) bool {
	valid := c.on.ValidFor(c.batch.View, server, next)
	if !valid {
		c.db.changed.Store(true)
	}
	if buckets != c.on.Buckets() {
		c.db.setBuckets(buckets)
		valid = false
	}
	return valid
}

// freeBehind returns the buckets whose low watermarks are far behind the table's next id and that
// no dispatcher writes to: every lower id of theirs has been committed or rolled back. If
// the statement that follows shows neither a row nor a blocked key of such a bucket, its
// low watermark may be raised. Buckets with a cursor are left out: they are not read from it.
func (c *claim) freeBehind(ctx context.Context, cursors []int64) (free map[int16]bool, err error) {
	behind := slices.DeleteFunc(c.on.Behind(c.batch.View, time.Now()), func(b int16) bool { return cursors[b] >= 0 })
	if len(behind) == 0 {
		return nil, nil
	}
	if c.db.showsUnwritten() { // or the next id may be forgotten
		if _, err := c.db.pool.ExecContext(ctx, c.db.outbox.Query("flush")); err != nil {
			return nil, err
		}
	}
	free = map[int16]bool{}
	err = c.query(ctx, c.fill("free_gates", c.on.Transport, numbers(behind)), func(rows *sql.Rows) error {
		var bucket int16
		err := rows.Scan(&bucket)
		free[bucket] = true
		return err
	})
	return free, err
}

// dropCursors puts marks into the place of cursors that are out of date.
func (c *claim) dropCursors(ctx context.Context, after, marks, versions []int64) error {
	now := map[int16]int64{}
	err := c.query(ctx, c.fill("versions", c.on.Transport), func(rows *sql.Rows) error {
		var bucket int16
		var version int64
		err := rows.Scan(&bucket, &version)
		now[bucket] = version
		return err
	})
	routes := c.batch.View.RouteVersion() == now[unkeyed]
	for b := range after {
		if !routes || versions[b] != now[int16(b)] {
			after[b] = marks[b]
		}
	}
	return err
}

// lock locks as many of the buckets as it wants, and skips buckets locked by other
// relays.
func (c *claim) lock(ctx context.Context, buckets []int16, want int) (locked []int16, err error) {
	for len(buckets) > 0 && len(locked) < want {
		n := min(want-len(locked), len(buckets))
		if err := c.query(ctx, c.fill("try_buckets", c.on.Transport, numbers(buckets[:n])), scanInto(&locked)); err != nil {
			return nil, err
		}
		buckets = buckets[n:]
	}
	return locked, nil
}

// maxNames is how many blocked keys of a bucket, or routes, a statement has by name.
// Beyond that it looks them up, by a join that takes longer to plan.
const maxNames = 20

// readState reads the blocked keys and routes of locked buckets. again is true if the
// number of buckets has changed since the probe.
func (c *claim) readState(ctx context.Context, locked []int16) (buckets []readpos.Bucket, routes readpos.Routes, again bool, err error) {
	most, names := len(locked)*maxNames, 0
	branches := []clause{
		c.fill("locked_state", c.on.Transport, c.on.Transport, numbers(locked), c.on.Transport),
		c.fill("blocked_keys", c.on.Transport, numbers(locked), most+1),
	}
	c.routes, c.keys = map[string]bool{}, map[int16][]string{}
	err = c.query(ctx, unionAll(branches), func(rows *sql.Rows) error {
		var branch string
		var bucket int16
		var n int64
		var name sql.NullString
		if err := rows.Scan(&branch, &bucket, &n, &name); err != nil {
			return err
		}
		switch {
		case branch == "buckets" && !c.isNamed(name.String):
			again = true
		case branch == "buckets" && int(n) != c.on.Buckets():
			c.db.setBuckets(int(n))
			again = true
		case branch == "version" && bucket == unkeyed:
			routes.Version = n
		case branch == "version":
			buckets = append(buckets, readpos.Bucket{Number: bucket, Version: n})
		case branch == "route":
			c.routes[name.String], routes.Any = true, true
		case branch == "key":
			c.keys[bucket] = append(c.keys[bucket], name.String)
			names++
		}
		return nil
	})
	c.manyKeys = names > most
	for i, bucket := range buckets {
		buckets[i].Blocked = c.manyKeys || len(c.keys[bucket.Number]) > 0
	}
	return buckets, routes, again, err
}

// reading returns the statement that reads the oldest rows of locked buckets, without
// rows of blocked keys and of a hot key. Where it leaves keys out, the last id of the
// bucket comes first, in case no row follows.
func (c *claim) reading(reads []readpos.Read, perBucket int, limit outbox.ClaimLimit) clause {
	body := c.body(perBucket*len(reads), limit)
	branches := make([]clause, 0, len(reads))
	for _, r := range reads {
		join, keys := c.conditions(r)
		if len(keys) > 0 {
			branches = append(branches, c.fill("last_id", r.Bucket, c.on.Transport, r.Bucket, r.After))
		}
		branches = append(branches, c.fill("keyed_rows", body, join, c.on.Transport, r.Bucket, r.After, and(keys), perBucket))
	}
	return unionAll(branches)
}

// conditions returns those for the keys of a read, and the join that they need.
func (c *claim) conditions(r readpos.Read) (join clause, keys []clause) {
	if blocked := c.keys[r.Bucket]; c.manyKeys || len(blocked) > maxNames {
		join, keys = c.fill("blocked_key"), append(keys, c.fill("not_of_blocked_key"))
	} else if len(blocked) > 0 {
		keys = append(keys, c.fill("not_of_keys", literals(blocked...)))
	}
	if r.Skip != "" {
		keys = append(keys, c.fill("not_of_keys", literals(r.Skip)))
	}
	return join, keys
}
