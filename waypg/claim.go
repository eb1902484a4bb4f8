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
	"github.com/waybill-go/waybill/internal/mutant"
	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// A claim is an open transaction that has locked rows: bucket rows for Keyed,
// messages for Unkeyed, entries for Retries.
type claim struct {
	*readpos.Batch // of Keyed

	db        *DB
	at        *place
	conn      *pgxpool.Conn // nil once it has ended
	part      outbox.Part
	transport int16
	pos       *readpos.Positions

	rows  []outbox.ClaimedRow // of Unkeyed and Retries
	refs  map[*waybill.Record]rowRef
	stale []entry // of Retries: entries whose message is gone

	due    bool          // delayed messages are due
	atOnce []readpos.Row // see lockAndRead
}

// A rowRef is the location of a claimed row, and the entry of its retry.
type rowRef struct {
	bucket int16
	at     uint64
	entry  entry
}

// An entry identifies a blocked key, route or message without key.
type entry struct {
	route, key string
	row        int64
	bucket     int16
}

// unkeyed stands for the bucket of messages without a key.
const unkeyed = -1

// Claim implements outbox.Store. See the package's doc.
func (db *DB) Claim(ctx context.Context, transport string, part outbox.Part, limit outbox.ClaimLimit) (outbox.Claim, error) {
	halfway := readpos.Halfway(ctx)
	for promoted := false; ; {
		p, err := db.ready(ctx)
		if err != nil {
			return nil, err
		}
		id, err := db.transportID(ctx, p, transport)
		if err != nil || id == 0 { // no process has dispatched to it yet
			return &claim{}, err
		}
		pos := db.positions(id)
		if part == outbox.Keyed && (db.due.Load() || pos.MaintenanceDue(time.Now(), 2*stuckEvery)) {
			promoted = promoted || db.due.Load()
			if err := db.upkeep(ctx, p, pos); err != nil {
				return nil, err
			}
		}
		c, again, err := db.claim(ctx, p, pos, transport, part, limit)
		switch {
		case err != nil:
			pos.Reset()
			return nil, translate(err)
		case again && halfway():
			return &claim{}, nil
		case again:
		case c.due && len(c.Rows()) == 0 && !promoted:
			promoted = true
			if err := db.promote(ctx, p); err != nil {
				return nil, err
			}
		case c.due:
			db.due.Store(true) // for the next claim, even if this one has rows
			return c, nil
		case len(c.Rows()) == 0 && part == outbox.Keyed:
			return c, db.upkeep(ctx, p, pos) // now, because an idle relay has the time
		default:
			return c, nil
		}
	}
}

// claim makes one attempt. again is true if it found no row although some may be
// due, or if the cached state is out of date.
func (db *DB) claim(ctx context.Context, p *place, pos *readpos.Positions, transport string, part outbox.Part, limit outbox.ClaimLimit) (_ *claim, again bool, err error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return nil, false, err
	}
	c := &claim{db: db, at: p, conn: conn, part: part, transport: pos.Transport, pos: pos, refs: map[*waybill.Record]rowRef{}}
	defer func() {
		if err != nil || len(c.Rows()) == 0 {
			c.end()
		}
	}()
	if part == outbox.Keyed {
		c.Batch = readpos.NewBatch(pos)
		again, err = c.keyed(ctx, transport, limit)
	} else {
		again, err = c.single(ctx, transport, limit)
	}
	return c, again, err
}

// keyed locks buckets in one round trip and reads them in the next, in separate
// statements.
func (c *claim) keyed(ctx context.Context, transport string, limit outbox.ClaimLimit) (again bool, err error) {
	server, state, err := c.lock(ctx, limit)
	switch {
	case err != nil:
		return false, err
	case server.transport != transport:
		c.db.lookAgain()
		return true, nil
	case state.buckets != c.Positions.Buckets():
		c.db.setBuckets(state.buckets)
		return true, nil
	case !c.Positions.ValidFor(c.View, server.identity(), state.next):
		return true, nil
	case len(state.locked) == 0:
		return false, nil
	}
	perBucket := max(limit.Rows/len(state.locked), 1)
	found, current, err := c.read(ctx, state, perBucket, limit.Bytes)
	if err != nil || !current {
		return !current, err
	}
	again = c.Take(found, perBucket)
	for _, row := range c.Batch.Rows {
		if at, _ := c.Origin(row); outbox.Bucket(row.Record.Key, state.buckets) != int(at.Bucket) {
			row.Record.Problem = fmt.Errorf("the row is in bucket %d of %d, which is not that of its key", at.Bucket, state.buckets)
		}
	}
	return again, nil
}

// claimState is the state of the outbox under which keyed rows are read.
type claimState struct {
	buckets int   // of the whole outbox
	next    int64 // the id that its next row gets
	locked  []readpos.Bucket
	routes  readpos.Routes
	names   []string // of blocked routes
}

// lock opens the transaction and locks buckets. The blocked keys and routes are
// read last: by then no other transaction can block a key of the locked buckets.
func (c *claim) lock(ctx context.Context, limit outbox.ClaimLimit) (server server, state claimState, err error) {
	cursors, marks, versions := c.View.After()
	args := []any{c.transport, cursors, marks, versions, c.View.RouteVersion(), c.View.Turn, min(max(limit.Rows, 1), readpos.MaxBuckets)}
	batch := &pgx.Batch{}
	c.queueBegin(batch)
	if mutant.Active(mutant.LockAndReadAtOnce) {
		if server, err = c.lockAndRead(ctx, batch, marks); err != nil {
			return server, state, err
		}
		batch = &pgx.Batch{}
	} else {
		batch.Queue(c.at.outbox.Query("lock_buckets"), args...)
	}
	batch.Queue(c.at.outbox.Query("claim_state"), c.transport)
	results := c.conn.SendBatch(ctx, batch)
	defer func() { err = errors.Join(err, results.Close()) }()
	if batch.Len() > 1 {
		if server, err = scanBegin(results); err != nil {
			return server, state, err
		}
		if _, err = results.Exec(); err != nil {
			return server, state, err
		}
	}
	rows, err := results.Query()
	if err != nil {
		return server, state, err
	}
	var bucket *int16
	var version *int64
	var blocked bool
	_, err = pgx.ForEachRow(rows, []any{&state.buckets, &state.next, &state.routes.Version, &state.names, &c.due, &bucket, &version, &blocked}, func() error {
		if bucket != nil {
			state.locked = append(state.locked, readpos.Bucket{Number: *bucket, Version: *version, Blocked: blocked})
		}
		return nil
	})
	state.routes.Any = len(state.names) > 0
	return server, state, err
}

// A server is the result of the statement settings.
type server struct {
	transport string // the transport's name in the tables
	started   time.Time
	file      uint32
}

// identity changes when ids may be given out again.
func (s server) identity() string { return fmt.Sprintf("%d/%d", s.started.UnixMicro(), s.file) }

// queueBegin opens the transaction of a claim, with the settings that it needs.
func (c *claim) queueBegin(batch *pgx.Batch) {
	begin := "BEGIN ISOLATION LEVEL READ COMMITTED"
	if mutant.Active(mutant.RepeatableReadRelay) {
		begin = "BEGIN ISOLATION LEVEL REPEATABLE READ"
	}
	batch.Queue(begin)
	batch.Queue(c.at.outbox.Query("settings"), fmt.Sprintf("%dms", c.db.idle.Milliseconds()), c.transport)
}

// scanBegin reads the results of queueBegin.
func scanBegin(results pgx.BatchResults) (s server, err error) {
	if _, err := results.Exec(); err != nil {
		return s, err
	}
	var set string
	err = results.QueryRow().Scan(&s.transport, &s.started, &s.file, &set, &set, &set, &set, &set, &set, &set)
	return s, err
}

// read reads the locked buckets above their positions. current is false if a key
// was unblocked after state was read.
func (c *claim) read(ctx context.Context, state claimState, perBucket, bytes int) (found []readpos.Row, current bool, err error) {
	reads := c.Reads(state.locked, state.routes)
	if mutant.Active(mutant.LockAndReadAtOnce) {
		return c.atOnce, true, nil
	}
	n := len(reads)
	buckets, after, skip, blocked, versions := make([]int16, n), make([]int64, n), make([]string, n), make([]bool, n), make([]int64, n)
	for i, r := range reads {
		buckets[i], after[i], skip[i], blocked[i], versions[i] = r.Bucket, r.After, r.Skip, state.locked[i].Blocked, state.locked[i].Version
	}
	rows, err := c.conn.Query(ctx, c.at.outbox.Query("claim"), c.transport, buckets, after, skip, blocked, state.names, perBucket, max(bytes, 1), versions)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	found = make([]readpos.Row, 0, perBucket*n)
	for rows.Next() {
		r := readpos.Row{}
		if err := scanRow(rows, &current, &r); err != nil {
			return nil, false, err
		}
		found = append(found, r)
	}
	return found, current, rows.Err()
}

// scanRow reads a row of the statement claim.
func scanRow(rows pgx.Rows, current *bool, r *readpos.Row) error {
	rec, at := &waybill.Record{}, pgtype.TID{}
	var id *int64
	var message *[16]byte
	var name, key, meta *string
	var created *time.Time
	var held *bool
	if err := rows.Scan(current, &r.Bucket, &at, &id, &message, &name, &key, &meta, &rec.Body, &created, &held, &r.Last); err != nil {
		return err
	}
	if r.None = id == nil; r.None {
		return nil
	}
	rec.ID, rec.Name, rec.Key, rec.DispatchedAt = *message, *name, *key, *created
	r.Claimed, r.Headers, r.Held, r.At = outbox.ClaimedRow{ID: *id, Record: rec}, *meta, *held, packTID(at)
	return nil
}

// packTID and unpackTID turn a row's ctid into the number that readpos keeps, and
// back.
func packTID(at pgtype.TID) uint64 { return uint64(at.BlockNumber)<<16 | uint64(at.OffsetNumber) }

func unpackTID(at uint64) pgtype.TID {
	return pgtype.TID{BlockNumber: uint32(at >> 16), OffsetNumber: uint16(at), Valid: true}
}

// maxRetries bounds the entries of a claim of Retries: they are published one at a
// time.
const maxRetries = 64

// single claims messages without a key, or Retries, in one round trip. again is
// true if it only held messages of a blocked route or found stale entries: more may
// be due.
func (c *claim) single(ctx context.Context, transport string, limit outbox.ClaimLimit) (again bool, err error) {
	batch := &pgx.Batch{}
	c.queueBegin(batch)
	began, after := time.Now(), int64(0)
	if c.part == outbox.Unkeyed {
		after = c.pos.Unkeyed.After(began)
		batch.Queue(c.at.outbox.Query("claim_unkeyed"), c.transport, limit.Rows, limit.Bytes, after)
	} else {
		batch.Queue(c.at.outbox.Query("claim_retries"), c.transport, min(limit.Rows, maxRetries), limit.Bytes)
	}
	server, waiting, last, err := c.readSingle(c.conn.SendBatch(ctx, batch))
	if err != nil {
		return false, err
	}
	switch n := len(c.rows); {
	case last == nil: // Retries
	case n > 0:
		c.pos.Unkeyed.Read(c.rows[n-1].ID) // rows behind it were beyond the limit of bytes
	default:
		c.pos.Unkeyed.Empty(after, time.Since(began))
		c.pos.Unkeyed.Read(*last)
	}
	switch {
	case server.transport != transport:
		c.rows = nil
		c.db.lookAgain()
		return true, nil
	case len(c.rows) > 0:
		return false, nil
	case waiting || len(c.stale) > 0:
		return true, c.Settle(ctx, nil, nil)
	}
	return false, nil
}

// readSingle reads the results of single. last is the last id read, or given out, of messages
// without a key; nil for Retries.
func (c *claim) readSingle(results pgx.BatchResults) (server server, waiting bool, last *int64, err error) {
	defer func() { err = errors.Join(err, results.Close()) }()
	if server, err = scanBegin(results); err != nil {
		return server, false, nil, err
	}
	rows, err := results.Query()
	if err != nil {
		return server, false, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		rec, at := &waybill.Record{}, pgtype.TID{}
		var bucket *int16
		var id *int64
		var message *[16]byte
		var name, key, meta, route, entryKey *string
		var created *time.Time
		var failures *int
		if err := rows.Scan(&waiting, &bucket, &at, &id, &message, &name, &key, &meta, &rec.Body, &created, &failures, &route, &entryKey, &last); err != nil {
			return server, false, nil, err
		}
		if id == nil {
			continue
		}
		ref := rowRef{*bucket, packTID(at), entry{*route, *entryKey, *id, *bucket}}
		if message == nil {
			c.stale = append(c.stale, ref.entry)
			continue
		}
		rec.ID, rec.Name, rec.Key, rec.DispatchedAt = *message, *name, *key, *created
		readpos.Decode(rec, *meta)
		c.rows = append(c.rows, outbox.ClaimedRow{ID: *id, Record: rec, Failures: *failures, Route: *route != ""})
		c.refs[rec] = ref
	}
	return server, waiting, last, rows.Err()
}

// Rows implements outbox.Claim.
func (c *claim) Rows() []outbox.ClaimedRow {
	if c.Batch != nil {
		return c.Batch.Rows
	}
	return c.rows
}

// ref returns the location of a row of the claim.
func (c *claim) ref(row outbox.ClaimedRow) (rowRef, bool) {
	if c.Batch == nil {
		ref, ok := c.refs[row.Record]
		return ref, ok
	}
	at, ok := c.Origin(row)
	return rowRef{at.Bucket, at.At, entry{"", row.Record.Key, row.ID, at.Bucket}}, ok
}

// end gives the connection back, and with it all locks.
func (c *claim) end() {
	if c.conn == nil {
		return
	}
	conn := c.conn
	c.conn = nil
	if !conn.Conn().IsClosed() && conn.Conn().PgConn().TxStatus() != 'I' && !conn.Conn().PgConn().IsBusy() {
		ctx, cancel := context.WithTimeout(context.Background(), sqlcore.RollbackTimeout)
		defer cancel()
		_, _ = conn.Exec(ctx, "ROLLBACK")
	}
	conn.Release() // closes it when it is not idle
}
