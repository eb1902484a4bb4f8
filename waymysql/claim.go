package waymysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/internal/mutant"
	"github.com/waybill-go/waybill/outbox"
)

// A claim is an open transaction that has locked buckets and rows.
type claim struct {
	*lane.Batch
	holder
	served *served

	free    bool           // unserialized rows may be there
	buckets int            // that there are, according to the tables
	news    map[int16]news // by bucket: what is in those that are not open
	aside   aside
}

// A holder is the open transaction of a claim.
type holder struct {
	db   *DB
	conn *sql.Conn // nil once it has ended
	open bool      // the transaction is
}

// Claim implements outbox.Store: it locks buckets in one statement and reads
// them in a later one. See the package's doc.
func (db *DB) Claim(ctx context.Context, transport string, most outbox.Max) (outbox.Claim, error) {
	none := &claim{Batch: &lane.Batch{}}
	if err := db.writer(ctx); err != nil {
		return nil, err
	}
	id, err := db.relayed(ctx, transport)
	if err != nil || id == 0 {
		return none, err
	}
	if err := db.upkeep(ctx, db.lane(id)); err != nil {
		return nil, err
	}
	idle := []int16{} // see lane.Batch.Idle
	halfway := lane.Halfway(ctx)
	for {
		l := db.lane(id) // another one once there are other buckets
		c, again, err := db.claim(ctx, l, most, &idle)
		if err != nil {
			l.Forget()
			return nil, translate(err)
		}
		switch {
		case !again:
			return c, nil
		case halfway():
			return none, nil
		}
	}
}

// relayed returns the lane of a transport, or 0 when nobody has dispatched to
// it yet.
func (db *DB) relayed(ctx context.Context, transport string) (int16, error) {
	db.mu.Lock()
	id := db.lanes[transport]
	db.mu.Unlock()
	if id == 0 {
		lanes, err := db.readLanes(ctx)
		return lanes[transport], err
	}
	return id, nil
}

// claim makes one attempt. Again says that what was remembered is out of date.
func (db *DB) claim(ctx context.Context, l *served, most outbox.Max, idle *[]int16) (_ *claim, again bool, err error) {
	pool, err := db.relayPool(ctx)
	if err != nil {
		return nil, false, err
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, false, err
	}
	c := &claim{Batch: lane.NewBatch(l.Lane), holder: holder{db: db, conn: conn}, served: l, free: db.anyUnserialized()}
	defer func() {
		if err != nil || again || len(c.Batch.Rows) == 0 {
			c.end()
		}
	}()
	full, again, err := c.discover(ctx, *idle)
	_, unkeyed := c.news[lane.Unkeyed]
	if err != nil || again || len(full) == 0 && !unkeyed {
		return c, again, err
	}
	if err := c.begin(ctx); err != nil {
		return nil, false, err
	}
	locked, err := c.lock(ctx, full, unkeyed, most)
	if err != nil {
		return nil, false, err
	}
	now, err := c.readState(ctx)
	if err != nil {
		return nil, false, err
	}
	if c.buckets != l.Buckets() {
		db.setBuckets(c.buckets)
		return nil, true, nil
	}
	if !l.Serves(c.View, now) {
		l.horizon.forget()
		return nil, true, nil
	}
	if len(locked) == 0 || len(c.Batch.Rows) >= most.Rows {
		return c, false, c.flush(ctx, len(c.Batch.Rows))
	}
	again, err = c.readBuckets(ctx, locked, most, idle)
	return c, again, err
}

func (h *holder) begin(ctx context.Context) error {
	begin := "START TRANSACTION"
	if mutant.Active(mutant.RepeatableReadRelay) {
		_, _ = h.conn.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
		begin += " WITH CONSISTENT SNAPSHOT"
	}
	err := h.exec(ctx, statement{text: begin})
	h.open = err == nil
	return err
}

func (h *holder) exec(ctx context.Context, statements ...statement) error {
	for _, s := range statements {
		if _, err := h.conn.ExecContext(ctx, s.text, s.args...); err != nil {
			return err
		}
	}
	return nil
}

func (h *holder) commit(ctx context.Context) error {
	err := h.exec(ctx, statement{text: "COMMIT"})
	h.open = err != nil
	return err
}

// query runs a statement and scans each row.
func (h *holder) query(ctx context.Context, text string, scan func(rows *sql.Rows) error, args ...any) error {
	rows, err := h.conn.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// lock locks buckets that have rows, and takes rows without a key: a quarter of
// the batch is for those, so that neither kind starves.
func (c *claim) lock(ctx context.Context, full []int16, anyUnkeyed bool, most outbox.Max) (locked []int16, err error) {
	unkeyed := (most.Rows + 3) / 4
	if most.Rows == 1 {
		unkeyed = c.View.Turn % 2
	}
	want := min(max(most.Rows-unkeyed, 1), lane.MaxBuckets)
	if mutant.Active(mutant.LockAndReadAtOnce) {
		locked, full = full[:min(want, len(full))], nil
	}
	// Other relays may have some of them: then the next in turn. Unserialized rows go
	// with the lock on their keys' bucket.
	for len(full) > 0 && len(locked) < want {
		n := min(want-len(locked), len(full))
		got, err := c.lockBuckets(ctx, c.Lane.ID, lane.Keyed(full[:n]))
		if err != nil {
			return nil, err
		}
		for _, bucket := range full[:n] {
			if slices.Contains(got, bucket%outbox.Unserialized) {
				locked = append(locked, bucket)
			}
		}
		full = full[n:]
	}
	if !anyUnkeyed || unkeyed == 0 {
		return locked, nil
	}
	return locked, c.takeUnkeyed(ctx, unkeyed, (most.Bytes+3)/4)
}

// lockBuckets locks those of the buckets that no other relay has.
func (h *holder) lockBuckets(ctx context.Context, lane int16, buckets []int16) (locked []int16, err error) {
	err = h.query(ctx, fmt.Sprintf("SELECT bucket FROM %soutbox_bucket FORCE INDEX (PRIMARY) WHERE lane = %d AND bucket IN (%s) FOR UPDATE SKIP LOCKED",
		qualified(h.db.schema, h.db.prefix), lane, join(buckets)), func(rows *sql.Rows) error {
		var bucket int16
		err := rows.Scan(&bucket)
		locked = append(locked, bucket)
		return err
	})
	return locked, err
}

// columns are those of a row, the columns that say what waits aside.
const columns = "e.bucket, NULL, e.id, e.message_id, e.message_name, e.partition_key, e.headers, %s, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', e.created_at)"

// takeUnkeyed locks and takes rows without a key. They have no order: relays
// share them row by row.
func (c *claim) takeUnkeyed(ctx context.Context, maxRows, maxBytes int) error {
	tables := qualified(c.db.schema, c.db.prefix)
	row := entry{tables, "i.route = '' AND i.partition_key = '' AND i.row_id = e.id"}
	route := entry{tables, ofRoute}
	bytes := 0
	return c.query(ctx, "SELECT "+fmt.Sprintf(columns, "e.body")+", "+row.get("i.failures", "0")+", "+row.get("TRUE", "FALSE")+", "+route.get("i.failures", "0")+", FALSE"+
		" FROM "+tables+"outbox AS e FORCE INDEX (PRIMARY) WHERE e.lane = "+fmt.Sprint(c.Lane.ID)+" AND e.bucket = -1 AND "+c.news[lane.Unkeyed].where()+
		" AND "+row.get(dueNow, "TRUE")+" AND "+route.get(dueNow, "TRUE")+
		fmt.Sprintf(" ORDER BY e.id LIMIT %d FOR UPDATE SKIP LOCKED", min(maxRows, c.sizes(maxBytes))), func(rows *sql.Rows) error {
		r, err := scanRow(rows)
		if err != nil {
			return err
		}
		if c.measure(r); bytes == 0 || bytes+size(r) <= maxBytes {
			bytes += size(r)
			c.Add(r)
		}
		return nil
	})
}

// An entry is how a statement looks up what is blocked for a row e of the
// outbox: as a scalar, for each row on its own. A join would, without statistics,
// read all that is blocked for every row.
type entry struct{ tables, where string }

const (
	ofKey   = "i.route = '' AND i.partition_key = e.partition_key AND i.row_id = 0"
	ofRoute = "i.route = e.message_name AND i.partition_key = '' AND i.row_id = 0"
	dueNow  = "i.next_attempt_at <= UTC_TIMESTAMP(6)"
)

// due is the condition for an entry that waits no more. It goes by the time at
// which the claim read what waits, as its cursors do: a key that became due only
// since then would be read from behind its head.
func (c *claim) due() string { return "i.next_attempt_at <= TIMESTAMP'" + stamp(c.State.Now) + "'" }

// get returns an expression for what the entry has, or none where there is no
// entry.
func (e entry) get(what, none string) string {
	return "IFNULL((SELECT " + what + " FROM " + e.tables + "outbox_blocked AS i WHERE i.lane = e.lane AND " + e.where + "), " + none + ")"
}

// readBuckets reads the locked buckets, from behind their cursors where those
// still hold. Again says that there was nothing to publish and may be more, or
// that what waits has changed meanwhile: a key that was let go would be read
// from behind its head.
func (c *claim) readBuckets(ctx context.Context, locked []int16, most outbox.Max, idle *[]int16) (again bool, err error) {
	limit := outbox.Max{Rows: most.Rows - len(c.Batch.Rows), Bytes: most.Bytes}
	for _, row := range c.Batch.Rows {
		limit.Bytes -= len(row.Record.Body)
	}
	limit.Bytes = max(limit.Bytes, 1)
	perBucket := max(min(limit.Rows, c.sizes(limit.Bytes))/len(locked), 1)
	parts := make([]part, len(locked))
	for i, from := range c.From(locked) {
		parts[i] = part{locked[i], from, perBucket}
		if n, ok := c.news[locked[i]]; ok {
			parts[i].from = max(from, n.ids[0]-1)
			if !n.more { // see look
				parts[i].rows = min(perBucket, len(n.ids))
			}
		}
	}
	read := c.readFrom
	if mutant.Active(mutant.LockAndReadAtOnce) {
		read = c.lockAndRead(locked)
	}
	version, found, err := read(ctx, c.rowsOf(parts), limit)
	if err != nil || version != c.State.Version {
		*idle = nil
		return err == nil, err
	}
	if err := c.flush(ctx, len(c.Batch.Rows)+len(found)); err != nil {
		return false, err
	}
	c.leaves(parts, found, perBucket)
	again = c.Take(found)
	nothing := c.Idle(locked)
	*idle = append(*idle, nothing...)
	return again || len(nothing) > 0, nil
}

// leaves notes of which buckets there may be more than what was found.
func (c *claim) leaves(parts []part, found []lane.Row, limit int) {
	rows := map[int16]int{}
	for _, r := range found {
		rows[r.Bucket]++
	}
	for _, p := range parts {
		c.served.backlog.note(p.bucket, rows[p.bucket] >= limit)
	}
}

// A part is what to read of a bucket: so many rows behind an id.
type part struct {
	bucket int16
	from   int64
	rows   int
}

// rowsOf returns the statement that reads the oldest rows of locked buckets,
// each from behind a mark or cursor of its own, without those of keys that wait.
// Rows of a route that waits come without their bodies, because what follows
// them in their keys must wait with them. The first arm is the version of the
// blocked keys that this statement sees. A bucket in which a key waits also has an
// arm with its last id, in case nothing of it may be published; not so one of
// unserialized rows, which has no cursor and of which only what does not wait is
// read.
func (c *claim) rowsOf(parts []part) string {
	tables := qualified(c.db.schema, c.db.prefix)
	key, route := entry{tables, ofKey}, entry{tables, ofRoute}
	body := c.aside.body(route.get(c.due(), "TRUE"))
	var b strings.Builder
	fmt.Fprintf(&b, "(SELECT -3, l.blocked_version, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM %soutbox_lane AS l WHERE l.id = %d)", tables, c.Lane.ID)
	for _, p := range parts {
		where := fmt.Sprintf(" FROM %soutbox AS e FORCE INDEX (PRIMARY) WHERE e.lane = %d AND e.bucket = %d AND e.id > %d", tables, c.Lane.ID, p.bucket, p.from)
		arm := func(failures, blocked, where string) {
			fmt.Fprintf(&b, " UNION ALL (SELECT "+columns+", %s, %s, 0, FALSE%s ORDER BY e.id LIMIT %d)", body, failures, blocked, where, p.rows)
		}
		free := lane.Unserialized(p.bucket)
		if free && c.RouteWaits() {
			where = c.notBehind(p.bucket, where, route)
		}
		last := func() {
			if !free {
				fmt.Fprintf(&b, " UNION ALL (SELECT %d, e.id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL%s ORDER BY e.id DESC LIMIT 1)", p.bucket, where)
			}
		}
		switch {
		case c.aside.keys != nil:
			without := ""
			if waiting := slices.Concat(c.aside.waiting[p.bucket], c.aside.waiting[lane.Twin(p.bucket)]); len(waiting) > 0 {
				last()
				without = " AND e.partition_key NOT IN (" + strings.Join(waiting, ", ") + ")"
			}
			arm("0", "FALSE", where+without)
		case c.aside.of(p.bucket):
			last()
			arm(key.get("CASE WHEN i.message_id = e.message_id THEN i.failures ELSE 0 END", "0"), key.get("TRUE", "FALSE"), where+" AND "+key.get(c.due(), "TRUE"))
		default:
			arm("0", "FALSE", where)
		}
	}
	return b.String()
}

// readFrom reads rows, and the version of the blocked state that they show. What
// is beyond the limit of bytes is left for another claim.
func (c *claim) readFrom(ctx context.Context, text string, limit outbox.Max) (version int64, found []lane.Row, err error) {
	bytes := 0
	full := map[int16]bool{} // buckets of which a row was left out
	err = c.query(ctx, text, func(rows *sql.Rows) error {
		r, err := scanRow(rows)
		switch {
		case err != nil:
			return err
		case r.Bucket == versionArm:
			version = *r.Last
			return nil
		case r.None:
			found = append(found, r)
			return nil
		}
		c.aside.fill(&r)
		// There is something of this bucket to publish, or to wait behind.
		if n := len(found) - 1; n >= 0 && found[n].None && found[n].Bucket == r.Bucket {
			found = found[:n]
		}
		if !r.Held {
			c.measure(r)
			full[r.Bucket] = full[r.Bucket] || bytes > 0 && bytes+size(r) > limit.Bytes
		}
		if full[r.Bucket] {
			return nil
		}
		bytes += size(r)
		found = append(found, r)
		return nil
	})
	return version, found, err
}

// versionArm is the bucket of the row that has the version.
const versionArm = -3

// scanRow reads a row of claim or takeUnkeyed.
func scanRow(rows *sql.Rows) (lane.Row, error) {
	rec := &waybill.Record{}
	r := lane.Row{Claimed: outbox.ClaimedRow{Record: rec}}
	var last, id, created, failures, routeFailures sql.NullInt64
	var message []byte
	var name, key, meta sql.NullString
	var keyBlocked, held sql.NullBool
	err := rows.Scan(&r.Bucket, &last, &id, &message, &name, &key, &meta, &rec.Body, &created, &failures, &keyBlocked, &routeFailures, &held)
	if err != nil {
		return r, err
	}
	if last.Valid {
		r.Last = &last.Int64
	}
	if r.None = !id.Valid; r.None {
		return r, nil
	}
	if len(message) != len(rec.ID) {
		return r, fmt.Errorf("row %d of the outbox has a message_id of %d bytes, want 16", id.Int64, len(message))
	}
	r.Claimed.ID, rec.ID, rec.Name, rec.Key, r.Headers, rec.DispatchedAt = id.Int64, [16]byte(message), name.String, key.String, meta.String, at(created.Int64)
	r.Claimed.Failures, r.Claimed.RouteFailures, r.KeyBlocked, r.Held = int(failures.Int64), int(routeFailures.Int64), keyBlocked.Bool, held.Bool
	return r, nil
}

// Rows implements outbox.Claim.
func (c *claim) Rows() []outbox.ClaimedRow { return c.Batch.Rows }

// end gives the connection back, and with it all locks.
func (h *holder) end() {
	if h.conn == nil {
		return
	}
	conn := h.conn
	h.conn = nil
	if h.open {
		ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
		defer cancel()
		if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // closes it
		}
	}
	_ = conn.Close()
}
