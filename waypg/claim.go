package waypg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/internal/mutant"
	"github.com/waybill-go/waybill/outbox"
)

// A claim is an open transaction that has locked buckets and rows.
type claim struct {
	*lane.Batch
	holder

	buckets int  // that there are, according to the tables
	due     bool // delayed messages are

	atOnce []lane.Row // see lockAndRead
}

// A holder is the open transaction of a claim.
type holder struct {
	db   *DB
	at   *place
	conn *pgxpool.Conn // nil once it has ended
}

// Claim implements outbox.Store: it locks buckets in one round trip and reads
// them in the next, in statements of their own. See the package's doc.
func (db *DB) Claim(ctx context.Context, transport string, max outbox.Max) (outbox.Claim, error) {
	p, err := db.ready(ctx)
	if err != nil {
		return nil, err
	}
	id, err := db.relayed(ctx, p, transport)
	if err != nil || id == 0 {
		return &claim{Batch: &lane.Batch{}}, err
	}
	if l := db.lane(id); db.due.Load() || l.Neglected(time.Now(), 2*stuckEvery) {
		if err := db.upkeep(ctx, p, l); err != nil {
			return nil, err
		}
	}
	idle := []int16{} // see lane.Batch.Idle
	halfway := lane.Halfway(ctx)
	for moved := false; ; {
		l := db.lane(id) // another one once there are other buckets
		c, again, err := db.claim(ctx, p, l, max, &idle)
		if err != nil {
			l.Forget()
			return nil, translate(err)
		}
		switch {
		case again && halfway():
			return &claim{Batch: &lane.Batch{}}, nil
		case again:
		case c.due && len(c.Batch.Rows) == 0 && !moved:
			moved = true
			if err := db.moveDelayed(ctx, p); err != nil {
				return nil, err
			}
		case len(c.Batch.Rows) == 0:
			return c, db.upkeep(ctx, p, l) // now, because nobody waits for it
		default:
			if c.due {
				db.due.Store(true) // they must not wait for the end of a backlog
			}
			return c, nil
		}
	}
}

// relayed returns the lane of a transport, or 0 when nobody has dispatched to
// it yet.
func (db *DB) relayed(ctx context.Context, p *place, transport string) (int16, error) {
	db.mu.Lock()
	id := db.lanes[transport]
	db.mu.Unlock()
	if id == 0 {
		lanes, err := db.readLanes(ctx, p)
		return lanes[transport], err
	}
	return id, nil
}

// claim makes one attempt. Again says that what was remembered is out of date.
func (db *DB) claim(ctx context.Context, p *place, l *lane.Lane, max outbox.Max, idle *[]int16) (_ *claim, again bool, err error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return nil, false, err
	}
	c := &claim{Batch: lane.NewBatch(l), holder: holder{db, p, conn}}
	defer func() {
		if err != nil || again || len(c.Batch.Rows) == 0 {
			c.end()
		}
	}()
	locked, now, err := c.lock(ctx, max, *idle)
	if err != nil {
		return nil, false, err
	}
	if c.buckets != l.Buckets() {
		db.setBuckets(c.buckets)
		return nil, true, nil
	}
	if !l.Serves(c.View, now) {
		return nil, true, nil
	}
	if len(locked) == 0 || len(c.Batch.Rows) >= max.Rows {
		return c, false, nil
	}
	again, err = c.readBuckets(ctx, locked, max, idle)
	return c, again, err
}

// lock opens the transaction, locks buckets and takes rows without a key, in
// one round trip. A quarter of the batch is for those, so that neither kind
// starves. Which keys and routes wait is read last: by then nobody else can
// change that for the keys and rows that are locked.
func (c *claim) lock(ctx context.Context, max outbox.Max, idle []int16) (locked []int16, now string, err error) {
	unkeyed := (max.Rows + 3) / 4
	if max.Rows == 1 {
		unkeyed = c.View.Turn % 2
	}
	cursors, marks, until := c.View.After()
	batch := &pgx.Batch{}
	c.queueBegin(batch)
	args := []any{c.Lane.ID, cursors, c.View.Turn, c.Lane.Buckets(), clamp(max.Rows-unkeyed, 1, lane.MaxBuckets), marks, until, c.View.Version()}
	if mutant.Active(mutant.LockAndReadAtOnce) {
		batch.Queue(c.lockAndRead(), append(args, max.Rows, max.Bytes)...)
	} else if c.db.anyUnserialized() {
		batch.Queue(c.at.outbox.Query("lock_buckets_unserialized"), append(args, c.View.Flip, idle)...)
	} else {
		batch.Queue(c.at.outbox.Query("lock_buckets"), args...)
	}
	batch.Queue(c.at.outbox.Query("claim_unkeyed"), c.Lane.ID, unkeyed, (max.Bytes+3)/4)
	batch.Queue(c.at.outbox.Query("blocked_state"), c.Lane.ID)
	results := c.conn.SendBatch(ctx, batch)
	defer func() { err = errors.Join(err, results.Close()) }()
	if _, err := results.Exec(); err != nil {
		return nil, "", err
	}
	if now, err = scanSettings(results.QueryRow()); err != nil {
		return nil, "", err
	}
	found, err := results.Query()
	if err != nil {
		return nil, "", err
	}
	if mutant.Active(mutant.LockAndReadAtOnce) {
		locked, err = c.readAtOnce(found)
	} else {
		locked, err = pgx.CollectRows(found, pgx.RowTo[int16])
	}
	if err != nil {
		return nil, "", err
	}
	if found, err = results.Query(); err != nil {
		return nil, "", err
	}
	if err := c.addUnkeyed(found); err != nil {
		return nil, "", err
	}
	if found, err = results.Query(); err != nil {
		return nil, "", err
	}
	return locked, now, c.readState(found)
}

// queueBegin opens the transaction of a claim, with the settings that it needs.
func (h *holder) queueBegin(batch *pgx.Batch) {
	begin := "BEGIN ISOLATION LEVEL READ COMMITTED"
	if mutant.Active(mutant.RepeatableReadRelay) {
		begin = "BEGIN ISOLATION LEVEL REPEATABLE READ"
	}
	batch.Queue(begin)
	batch.Queue(h.at.outbox.Query("settings"), fmt.Sprintf("%dms", h.db.idle.Milliseconds()))
}

// scanSettings returns who has answered.
func scanSettings(row pgx.Row) (server string, err error) {
	var started time.Time
	var file uint32
	var ignored string
	err = row.Scan(&started, &file, &ignored, &ignored, &ignored, &ignored, &ignored, &ignored, &ignored)
	return fmt.Sprintf("%d/%d", started.UnixMicro(), file), err
}

func clamp(n, low, high int) int { return min(max(n, low), high) }

func (c *claim) addUnkeyed(rows pgx.Rows) error {
	defer rows.Close()
	for rows.Next() {
		r := lane.Row{Claimed: newRow()}
		rec, id, at := r.Claimed.Record, [16]byte{}, pgtype.TID{}
		if err := rows.Scan(&r.Bucket, &at, &r.Claimed.ID, &id, &rec.Name, &rec.Key, &r.Headers, &rec.Body, &rec.DispatchedAt,
			&r.Claimed.Failures, &r.KeyBlocked, &r.Claimed.RouteFailures); err != nil {
			return err
		}
		rec.ID, r.At = id, placeOf(at)
		c.Add(r)
	}
	return rows.Err()
}

func newRow() outbox.ClaimedRow { return outbox.ClaimedRow{Record: &waybill.Record{}} }

// readBuckets reads the locked buckets, from behind their cursors where those
// still hold. Again says that there was nothing to publish and may be more, or
// that what waits has changed meanwhile: a key that was let go would be read
// from behind its head.
func (c *claim) readBuckets(ctx context.Context, locked []int16, max outbox.Max, idle *[]int16) (again bool, err error) {
	from := c.From(locked)
	limit := outbox.Max{Rows: max.Rows - len(c.Batch.Rows), Bytes: max.Bytes}
	for _, row := range c.Batch.Rows {
		limit.Bytes -= len(row.Record.Body)
	}
	version, found, err := c.readFrom(ctx, locked, from, limit)
	if err != nil || version != c.State.Version {
		*idle = []int16{}
		return err == nil, err
	}
	again = c.Take(found)
	nothing := c.Idle(locked)
	*idle = append(*idle, nothing...)
	return again || len(nothing) > 0, nil
}

// readState reads which keys and routes wait.
func (c *claim) readState(rows pgx.Rows) error {
	c.State.Next = map[int16]time.Time{}
	var bucket *int16
	var next *time.Time
	_, err := pgx.ForEachRow(rows, []any{&c.State.Version, &c.State.Any, &c.State.Now, &c.buckets, &c.due, &bucket, &next}, func() error {
		if bucket != nil {
			c.State.Next[*bucket] = *next
		}
		return nil
	})
	return err
}

// readFrom reads rows, and the version of the blocked state that they show. Those
// that took no dispatch lock are read apart where a route waits.
func (c *claim) readFrom(ctx context.Context, locked []int16, from []int64, limit outbox.Max) (version int64, found []lane.Row, err error) {
	if mutant.Active(mutant.LockAndReadAtOnce) {
		return c.State.Version, c.atOnce, nil
	}
	if !c.State.Any {
		return c.read(ctx, "claim_free", locked, from, max(limit.Rows/len(locked), 1), limit.Bytes)
	}
	perBucket, apart := max(limit.Rows/len(locked), 1), len(locked)
	if c.RouteWaits() {
		apart = split(locked, from)
	}
	if apart > 0 {
		if version, found, err = c.read(ctx, "claim", locked[:apart], from[:apart], perBucket, limit.Bytes); err != nil || apart == len(locked) {
			return version, found, err
		}
	}
	for _, r := range found {
		limit.Bytes -= len(r.Claimed.Record.Body)
	}
	of, more, err := c.read(ctx, "claim_unserialized", locked[apart:], from[apart:], perBucket, limit.Bytes)
	if apart > 0 && of != version {
		of = -1 // nobody's: it has changed in between
	}
	return of, append(found, more...), err
}

// split puts the buckets of unserialized rows at the end, and returns where they
// begin.
func split(buckets []int16, from []int64) (at int) {
	for i, bucket := range buckets {
		if !lane.Unserialized(bucket) {
			buckets[at], buckets[i], from[at], from[i] = bucket, buckets[at], from[i], from[at]
			at++
		}
	}
	return at
}

// read reads rows of buckets by one of the statements for it.
func (c *claim) read(ctx context.Context, query string, locked []int16, from []int64, perBucket, bytes int) (version int64, found []lane.Row, err error) {
	scan := scanRow
	if query == "claim_free" {
		scan = scanFree
	}
	rows, err := c.conn.Query(ctx, c.at.outbox.Query(query), c.Lane.ID, locked, from, perBucket, max(bytes, 1))
	if err != nil {
		return 0, nil, err
	}
	defer rows.Close()
	version = c.State.Version // where there is no row that says it
	found = make([]lane.Row, 0, perBucket*len(locked))
	for rows.Next() {
		r := lane.Row{Claimed: newRow()}
		if err := scan(rows, &version, &r); err != nil {
			return 0, nil, err
		}
		found = append(found, r)
	}
	return version, found, rows.Err()
}

// scanFree reads a row of claim_free.
func scanFree(rows pgx.Rows, version *int64, r *lane.Row) error {
	rec, at := r.Claimed.Record, pgtype.TID{}
	err := rows.Scan(version, &r.Bucket, &at, &r.Claimed.ID, (*[16]byte)(&rec.ID), &rec.Name, &rec.Key, &r.Headers, &rec.Body, &rec.DispatchedAt)
	r.At = placeOf(at)
	return err
}

// scanRow reads a row of claim.
func scanRow(rows pgx.Rows, version *int64, r *lane.Row) error {
	rec, at := r.Claimed.Record, pgtype.TID{}
	var id *int64
	var message *[16]byte
	var name, key, meta *string
	var created *time.Time
	var failures, routeFailures *int
	var keyBlocked, held *bool
	if err := rows.Scan(version, &r.Bucket, &r.Last, &at, &id, &message, &name, &key, &meta, &rec.Body, &created, &failures, &keyBlocked, &routeFailures, &held); err != nil {
		return err
	}
	if r.None = id == nil; r.None {
		return nil
	}
	r.Claimed.ID, rec.ID, rec.Name, rec.Key, r.Headers, rec.DispatchedAt, r.Claimed.Failures = *id, *message, *name, *key, *meta, *created, *failures
	r.Claimed.RouteFailures, r.KeyBlocked, r.Held, r.At = *routeFailures, *keyBlocked, *held, placeOf(at)
	return nil
}

// placeOf and tidOf turn a row's ctid into the number that a lane keeps, and back.
func placeOf(at pgtype.TID) uint64 { return uint64(at.BlockNumber)<<16 | uint64(at.OffsetNumber) }

func tidOf(place uint64) pgtype.TID {
	return pgtype.TID{BlockNumber: uint32(place >> 16), OffsetNumber: uint16(place), Valid: true}
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
	if !conn.Conn().IsClosed() && conn.Conn().PgConn().TxStatus() != 'I' && !conn.Conn().PgConn().IsBusy() {
		ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
		defer cancel()
		_, _ = conn.Exec(ctx, "ROLLBACK")
	}
	conn.Release() // closes it when it is not idle
}
