package waymysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/mutant"
	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/outbox"
)

// A claim is an open transaction that has locked rows, and the buckets or entries
// that they belong to.
type claim struct {
	db    *DB
	conn  *sql.Conn // nil once it has ended
	open  bool      // the transaction is
	on    *relayed
	part  outbox.Part
	batch *readpos.Batch // of Keyed
	rows  []outbox.ClaimedRow
	at    map[*waybill.Record]place

	bumped map[int16]bool     // buckets whose version Settle has changed
	routes map[string]bool    // that are blocked
	keys   map[int16][]string // by bucket: blocked keys, as literals
}

// A place is where a claimed row is stored.
type place struct {
	bucket int16 // -1 without a key
	id     int64
	held   int    // of a row without a key
	entry  *entry // that blocked it; nil where it is claimed for the first time
}

// Claim implements outbox.Store.
func (db *DB) Claim(ctx context.Context, transport string, part outbox.Part, limit outbox.ClaimLimit) (outbox.Claim, error) {
	if err := db.writer(ctx); err != nil {
		return nil, err
	}
	id, err := db.transport(ctx, transport)
	if err != nil || id == 0 {
		return &claim{}, err
	}
	if part == outbox.Keyed {
		if err := db.upkeep(ctx, id, transport); err != nil {
			return nil, err
		}
	}
	halfway := readpos.Halfway(ctx)
	for {
		on := db.relaying(id) // another one once there are other buckets
		c, again, err := db.claim(ctx, on, part, limit)
		if err != nil {
			on.reset()
			return nil, fmt.Errorf("claim %v: %w", part, translate(err))
		}
		if !again || halfway() {
			return c, nil
		}
	}
}

// claim makes one attempt. Again says that there may be something behind what was
// read, or that the positions were out of date.
func (db *DB) claim(ctx context.Context, on *relayed, part outbox.Part, limit outbox.ClaimLimit) (c *claim, again bool, err error) {
	pool, err := db.relayPool(ctx)
	if err != nil {
		return nil, false, err
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, false, err
	}
	c = &claim{db: db, conn: conn, on: on, part: part, at: map[*waybill.Record]place{}}
	defer func() {
		if err != nil || again || len(c.rows) == 0 {
			c.end()
		}
	}()
	switch part {
	case outbox.Unkeyed:
		again, err = c.claimUnkeyed(ctx, limit)
	case outbox.Retries:
		again, err = c.claimRetries(ctx, limit)
	default:
		c.batch = readpos.NewBatch(on.Positions)
		again, err = c.claimKeyed(ctx, limit)
		c.rows = c.batch.Rows
		for _, row := range c.rows {
			at, _ := c.batch.Origin(row)
			c.at[row.Record] = place{bucket: at.Bucket, id: row.ID}
		}
	}
	if err == nil && !again {
		err = c.flush(ctx)
	}
	return c, again, err
}

// Rows implements outbox.Claim.
func (c *claim) Rows() []outbox.ClaimedRow { return c.rows }

// claimKeyed locks buckets in one statement and reads them in a later one. See the
// package's doc.
func (c *claim) claimKeyed(ctx context.Context, limit outbox.ClaimLimit) (again bool, err error) {
	found, again, err := c.look(ctx)
	if err != nil || again || len(found) == 0 {
		return again, err
	}
	if err := c.begin(ctx); err != nil {
		return false, err
	}
	want := min(limit.Rows, readpos.MaxBuckets, c.db.sizes(limit.Bytes))
	locked, read := found[:min(want, len(found))], c.read
	if mutant.Active(mutant.LockAndReadAtOnce) {
		read = c.lockAndRead(locked)
	} else if locked, err = c.lock(ctx, found, want); err != nil || len(locked) == 0 {
		return false, err
	}
	buckets, routes, again, err := c.readState(ctx, locked)
	if err != nil || again {
		return again, err
	}
	perBucket := max(min(limit.Rows, c.db.sizes(limit.Bytes))/len(locked), 1)
	rows, err := read(ctx, c.reading(c.batch.Reads(buckets, routes), perBucket, limit), limit)
	if err != nil {
		return false, err
	}
	return c.batch.Take(rows, perBucket), nil
}

// maxArms bounds a statement of a look.
const maxArms = 128

// look returns buckets that have rows behind their positions, beginning with the one
// whose turn it is. Again says that the positions were of an earlier time.
func (c *claim) look(ctx context.Context) (found []int16, again bool, err error) {
	after, marks, versions := c.batch.View.After()
	if slices.ContainsFunc(versions, func(v int64) bool { return v >= 0 }) {
		if err := c.dropCursors(ctx, after, marks, versions); err != nil {
			return nil, false, err
		}
	}
	tables := qualified(c.db.schema, c.db.prefix)
	text, args := "("+c.db.outbox.Query("table")+") UNION ALL ("+c.db.outbox.Query("paused")+")", []any{c.db.schema, c.db.prefix + "outbox"}
	for first := 0; first < len(after) && len(found) < 2*readpos.MaxBuckets; first += maxArms {
		var b strings.Builder
		for i := first; i < min(first+maxArms, len(after)); i++ {
			bucket := (i + c.batch.View.Turn) % len(after)
			fmt.Fprintf(&b, " UNION ALL (SELECT 'row', %d, id, NULL FROM %soutbox FORCE INDEX (PRIMARY) WHERE transport = %d AND bucket = %[1]d AND id > %[4]d ORDER BY id LIMIT 1)",
				bucket, tables, c.on.Transport, after[bucket])
		}
		paused := false
		err := c.query(ctx, text+b.String(), func(rows *sql.Rows) error {
			var arm string
			var bucket int16
			var id sql.NullInt64
			var server sql.NullString
			if err := rows.Scan(&arm, &bucket, &id, &server); err != nil {
				return err
			}
			switch arm {
			case "table":
				again = int(bucket) != len(after) || !c.on.ValidFor(c.batch.View, server.String, id.Int64)
				if int(bucket) != len(after) {
					c.db.setBuckets(int(bucket))
				}
			case "paused":
				paused = true
			default:
				found = append(found, bucket)
			}
			return nil
		}, args...)
		if err != nil || paused || again {
			return nil, again, err
		}
	}
	return found, false, nil
}

// dropCursors puts marks into the place of cursors that are out of date.
func (c *claim) dropCursors(ctx context.Context, after, marks, versions []int64) error {
	now := map[int16]int64{}
	err := c.query(ctx, c.db.outbox.Query("versions"), func(rows *sql.Rows) error {
		var bucket int16
		var version int64
		err := rows.Scan(&bucket, &version)
		now[bucket] = version
		return err
	}, c.on.Transport)
	routes := c.batch.View.RouteVersion() == now[unkeyed]
	for b := range after {
		if !routes || versions[b] != now[int16(b)] {
			after[b] = marks[b]
		}
	}
	return err
}

// lock locks as many of the buckets as it wants, and leaves those that other relays
// have.
func (c *claim) lock(ctx context.Context, buckets []int16, want int) (locked []int16, err error) {
	for len(buckets) > 0 && len(locked) < want {
		n := min(want-len(locked), len(buckets))
		err := c.query(ctx, fmt.Sprintf("SELECT bucket FROM %soutbox_bucket FORCE INDEX (PRIMARY) WHERE transport = %d AND bucket IN (%s) FOR UPDATE SKIP LOCKED",
			qualified(c.db.schema, c.db.prefix), c.on.Transport, join(buckets[:n])), func(rows *sql.Rows) error {
			var bucket int16
			err := rows.Scan(&bucket)
			locked = append(locked, bucket)
			return err
		})
		if err != nil {
			return nil, err
		}
		buckets = buckets[n:]
	}
	return locked, nil
}

// maxNames is how many blocked keys of a bucket, or routes, a statement has by name.
// Beyond that it looks them up, which takes MariaDB a millisecond to plan for each
// bucket.
const maxNames = 20

// readState reads what is blocked in the locked buckets. Again says that there are
// other buckets since the look.
func (c *claim) readState(ctx context.Context, locked []int16) (buckets []readpos.Bucket, routes readpos.Routes, again bool, err error) {
	tables := qualified(c.db.schema, c.db.prefix)
	var b strings.Builder
	fmt.Fprintf(&b, "SELECT 'buckets', 0, CAST(value AS SIGNED), NULL FROM %[1]smeta WHERE name = 'buckets'"+
		" UNION ALL (SELECT 'version', bucket, blocked_version, NULL FROM %[1]soutbox_bucket FORCE INDEX (PRIMARY) WHERE transport = %[2]d AND bucket IN (-1,%[3]s))"+
		" UNION ALL (SELECT 'route', -1, 0, route FROM %[1]soutbox_blocked FORCE INDEX (PRIMARY) WHERE transport = %[2]d AND route > '')", tables, c.on.Transport, join(locked))
	for _, bucket := range locked {
		fmt.Fprintf(&b, " UNION ALL (SELECT 'key', %d, 0, partition_key FROM %soutbox_blocked FORCE INDEX (%soutbox_blocked_by_bucket) WHERE transport = %d AND bucket = %[1]d AND partition_key > '' LIMIT %[5]d)",
			bucket, tables, c.db.prefix, c.on.Transport, maxNames+1)
	}
	c.routes, c.keys = map[string]bool{}, map[int16][]string{}
	err = c.query(ctx, b.String(), func(rows *sql.Rows) error {
		var arm string
		var bucket int16
		var n int64
		var name sql.NullString
		if err := rows.Scan(&arm, &bucket, &n, &name); err != nil {
			return err
		}
		switch {
		case arm == "buckets" && int(n) != c.on.Buckets():
			c.db.setBuckets(int(n))
			again = true
		case arm == "version" && bucket == unkeyed:
			routes.Version = n
		case arm == "version":
			buckets = append(buckets, readpos.Bucket{Number: bucket, Version: n})
		case arm == "route":
			c.routes[name.String], routes.Any = true, true
		case arm == "key":
			c.keys[bucket] = append(c.keys[bucket], literal(name.String))
		}
		return nil
	})
	for i, bucket := range buckets {
		buckets[i].Blocked = len(c.keys[bucket.Number]) > 0
	}
	return buckets, routes, again, err
}

func literal(name string) string { return fmt.Sprintf("X'%x'", name) }

// columns are those of a row, with its bucket and its body.
const columns = "%s, NULL, e.id, e.message_id, e.message_name, %s, e.headers, LENGTH(e.body), %s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', e.created_at)"

// body is the expression for the body of one of so many rows. Rows of a waiting route
// come without, and rows larger than their share of what may be read: see bodies.
func (c *claim) body(rows int, limit outbox.ClaimLimit) string {
	of := fmt.Sprintf("LENGTH(e.body) <= %d", max(limit.Bytes/rows, 1))
	if len(c.routes) > maxNames {
		of += fmt.Sprintf(" AND NOT EXISTS (SELECT 1 FROM %soutbox_blocked AS r FORCE INDEX (PRIMARY) WHERE r.transport = e.transport AND r.route = e.message_name AND r.partition_key = '')", qualified(c.db.schema, c.db.prefix))
	} else if len(c.routes) > 0 {
		var names []string
		for name := range c.routes {
			names = append(names, literal(name))
		}
		of += " AND e.message_name NOT IN (" + strings.Join(names, ",") + ")"
	}
	return "CASE WHEN " + of + " THEN e.body END"
}

// reading returns the statement that reads the oldest rows of locked buckets, without
// those of blocked keys and of a hot key. Where it leaves keys out, the last id of the
// bucket comes first, in case nothing else does.
func (c *claim) reading(reads []readpos.Read, perBucket int, limit outbox.ClaimLimit) string {
	tables := qualified(c.db.schema, c.db.prefix)
	body := c.body(perBucket*len(reads), limit)
	arms := make([]string, 0, len(reads))
	for _, r := range reads {
		where := fmt.Sprintf(" FROM %soutbox AS e FORCE INDEX (PRIMARY) WHERE e.transport = %d AND e.bucket = %d AND e.id > %d", tables, c.on.Transport, r.Bucket, r.After)
		without := ""
		if keys := c.keys[r.Bucket]; len(keys) > maxNames {
			without = fmt.Sprintf(" AND NOT EXISTS (SELECT 1 FROM %soutbox_blocked AS i FORCE INDEX (%soutbox_blocked_by_bucket) WHERE i.transport = e.transport AND i.bucket = e.bucket AND i.partition_key = e.partition_key)", tables, c.db.prefix)
		} else if len(keys) > 0 {
			without = " AND e.partition_key NOT IN (" + strings.Join(keys, ",") + ")"
		}
		if r.Skip != "" {
			without += " AND e.partition_key <> " + literal(r.Skip)
		}
		if without != "" {
			arms = append(arms, fmt.Sprintf("(SELECT %d, e.id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL%s ORDER BY e.id DESC LIMIT 1)", r.Bucket, where))
		}
		arms = append(arms, fmt.Sprintf("(SELECT "+columns+"%s ORDER BY e.id LIMIT %d)", "e.bucket", "e.partition_key", body, where+without, perBucket))
	}
	return strings.Join(arms, " UNION ALL ")
}

func (c *claim) begin(ctx context.Context) error {
	begin := "START TRANSACTION"
	if mutant.Active(mutant.RepeatableReadRelay) {
		_, _ = c.conn.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
		begin += " WITH CONSISTENT SNAPSHOT"
	}
	err := c.exec(ctx, begin)
	c.open = err == nil
	return err
}

// do runs a statement of the outbox.
func (c *claim) do(ctx context.Context, name string, args ...any) error {
	return c.exec(ctx, c.db.outbox.Query(name), args...)
}

func (c *claim) exec(ctx context.Context, text string, args ...any) error {
	_, err := c.conn.ExecContext(ctx, text, args...)
	return err
}

func (c *claim) commit(ctx context.Context) error {
	err := c.exec(ctx, "COMMIT")
	c.open = err != nil
	return err
}

// query runs a statement and scans each row.
func (c *claim) query(ctx context.Context, text string, scan func(rows *sql.Rows) error, args ...any) error {
	return each(ctx, c.conn, text, scan, args...)
}

// flush has the server write what made the rows that were read, if any. InnoDB
// shows a commit before it is in its log: a server that is killed in between
// forgets the row, and gives its id to another. A commit of our own is written
// after all that was seen. The claim's own session is silent meanwhile: it must
// still be there, and counts anew.
func (c *claim) flush(ctx context.Context) error {
	if len(c.rows) == 0 || !c.db.showsUnwritten() {
		return nil
	}
	if _, err := c.db.pool.ExecContext(ctx, c.db.outbox.Query("flush")); err != nil {
		return err
	}
	return c.conn.PingContext(ctx)
}

// end gives the connection back, and with it all locks.
func (c *claim) end() {
	if c.conn == nil {
		return
	}
	conn := c.conn
	c.conn = nil
	if c.open {
		ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
		defer cancel()
		if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // closes it
		}
	}
	_ = conn.Close()
}

// relayed is the state of a transport in the relays of this process.
type relayed struct {
	*readpos.Positions
	unkeyed unkeyedPosition
}

// reset drops all positions: after an error nothing is known of what was committed.
func (on *relayed) reset() {
	on.Reset()
	on.unkeyed.restart()
}

func (db *DB) relaying(transport int16) *relayed {
	db.mu.Lock()
	defer db.mu.Unlock()
	on, ok := db.relayed[transport]
	if !ok {
		on = &relayed{Positions: readpos.New(transport, db.buckets)}
		db.relayed[transport] = on
	}
	return on
}

// upkeep does what is due before a claim: it promotes delayed messages, and once a
// second reads one bucket from its start.
func (db *DB) upkeep(ctx context.Context, id int16, transport string) error {
	if err := db.promote(ctx); err != nil {
		return err
	}
	on := db.relaying(id)
	bucket, marked := on.NextProbe(time.Now())
	if !marked {
		return nil
	}
	var sentinels int
	var first sql.NullInt64
	err := db.pool.QueryRowContext(ctx, db.outbox.Query("probe"), id, bucket, id, id, bucket).Scan(&sentinels, &first)
	if err == nil && first.Valid {
		on.LowerWatermark(bucket, first.Int64)
	}
	if err == nil && sentinels < 3 { // TRUNCATE, or DELETE by hand
		err = db.addSentinels(ctx, db.pool, transport, on.Buckets())
	}
	return translate(err)
}
