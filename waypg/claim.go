package waypg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// A claim is an open transaction that has locked rows: bucket rows for Keyed,
// messages for Unkeyed, entries for Retries.
type claim struct {
	*readpos.Batch // of Keyed

	db        *DB
	at        *catalog
	conn      *pgxpool.Conn // nil once it has ended
	part      outbox.Part
	transport int16
	pos       *relaying

	rows  []outbox.ClaimedRow // of Unkeyed and Retries
	refs  map[*waybill.Record]rowRef
	stale []entry // of Retries: entries whose message is gone

	due bool // delayed messages are due
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
		p, err := db.ensureSchema(ctx)
		if err != nil {
			return nil, err
		}
		id, err := db.transportID(ctx, p, transport)
		if err != nil || id == 0 { // no process has dispatched to it yet
			return &claim{}, err
		}
		pos := db.positions(id)
		if part == outbox.Keyed && (db.due.Load() || pos.unchecked(2*stuckEvery)) {
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
func (db *DB) claim(ctx context.Context, p *catalog, pos *relaying, transport string, part outbox.Part, limit outbox.ClaimLimit) (_ *claim, again bool, err error) {
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
		c.Batch = readpos.NewBatch(pos.Positions)
		again, err = c.keyed(ctx, transport, limit)
	} else {
		again, err = c.single(ctx, transport, limit)
	}
	return c, again, err
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
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
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

// packTID and unpackTID turn a row's ctid into the number that readpos keeps, and
// back.
func packTID(at pgtype.TID) uint64 { return uint64(at.BlockNumber)<<16 | uint64(at.OffsetNumber) }

func unpackTID(at uint64) pgtype.TID {
	return pgtype.TID{BlockNumber: uint32(at >> 16), OffsetNumber: uint16(at), Valid: true}
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
