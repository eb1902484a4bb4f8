package waypg

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// Settle implements outbox.Claim: one round trip deletes, records failures and
// commits. Read positions advance only after it.
func (c *claim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	if c.conn == nil {
		return nil
	}
	defer c.end()
	s := &settlement{claim: c}
	for _, row := range published {
		s.publish(row)
	}
	for _, f := range failed {
		s.fail(f)
	}
	for _, e := range c.stale {
		s.unblock(e)
	}
	gone, err := s.send(ctx)
	switch {
	case err != nil:
		c.db.positions(c.transport).Reset()
		return translate(err)
	case c.Batch == nil:
		if c.part == outbox.Unkeyed && len(published)+len(failed) < len(c.rows) {
			c.pos.Unkeyed.Again()
		}
	case gone != len(published): // a row was moved: the positions are not to be trusted
		c.Positions.Reset()
	default:
		c.Settled(published)
	}
	return nil
}

// A settlement collects what one Settle writes.
type settlement struct {
	*claim
	buckets []int16 // with changed blocked keys
	routes  bool    // the blocked routes change
	keyed   deletion
	unkeyed deletion
	refused pgx.Batch // statements of failures
	freed   entries
}

// A deletion is a set of rows of one table.
type deletion struct {
	at  []pgtype.TID
	ids []int64
}

func (d *deletion) add(ref rowRef, id int64) {
	d.at, d.ids = append(d.at, unpackTID(ref.at)), append(d.ids, id)
}

// entries are entries to delete, as arrays.
type entries struct {
	routes, keys []string
	rows         []int64
}

func (s *settlement) publish(row outbox.ClaimedRow) {
	ref, ok := s.ref(row)
	switch {
	case !ok:
		return
	case ref.bucket == unkeyed:
		s.unkeyed.add(ref, row.ID)
	default:
		s.keyed.add(ref, row.ID)
	}
	if s.part == outbox.Retries {
		s.unblock(ref.entry)
	}
}

func (s *settlement) unblock(e entry) {
	s.freed.routes, s.freed.keys, s.freed.rows = append(s.freed.routes, e.route), append(s.freed.keys, e.key), append(s.freed.rows, e.row)
	s.changes(e)
}

// changes notes that an entry is added or removed.
func (s *settlement) changes(e entry) {
	if s.routes = s.routes || e.route != ""; e.key != "" {
		s.buckets = append(s.buckets, e.bucket)
	}
}

// fail records that a row was refused.
func (s *settlement) fail(f outbox.Failure) {
	ref, ok := s.ref(f.Row)
	if !ok {
		return
	}
	e, retried, count, state := ref.entry, s.part == outbox.Retries, 1, "retrying"
	if f.Suspect {
		count = 0
	}
	s.db.noteDelay(f.RetryIn)
	switch {
	case f.Route && e.route == "": // the route is blocked, and with it the row
		s.block(f, entry{f.Row.Record.Name, "", e.row, e.bucket}, 1, state)
		if retried {
			s.refuse(f, e, 0, state)
		}
		return
	case f.Skips() && !f.Route:
		s.refused.Queue(s.at.settle.Query("skip"), s.transport, e.bucket, e.row, count, reason(f))
		if retried {
			s.unblock(e)
		}
		return
	case f.Parks() && !f.Route:
		state = "parked"
		s.changes(e)
		s.refused.Queue(s.at.settle.Query("set_aside"), s.transport, e.bucket, e.key, maxSetAside)
	}
	if retried {
		s.refuse(f, e, count, state)
	} else {
		s.block(f, e, count, state)
	}
}

// maxSetAside bounds the rows that one settle sets aside.
const maxSetAside = 10_000

// block adds an entry. A message without a key is held for it.
func (s *settlement) block(f outbox.Failure, e entry, failures int, state string) {
	rec := f.Row.Record
	s.changes(e)
	s.refused.Queue(s.at.settle.Query("block"), s.transport, e.route, e.key, e.row, e.bucket, rec.ID.String(), rec.Name, failures, f.RetryIn.Seconds(), reason(f), string(f.Policy), state)
	if e.bucket == unkeyed {
		s.refused.Queue(s.at.settle.Query("hold"), s.transport, e.row)
	}
	if e.bucket == unkeyed || e.route != "" {
		s.refused.Queue(s.at.settle.Query("join_route"), s.transport, rec.Name)
	}
}

// refuse counts a further refusal.
func (s *settlement) refuse(f outbox.Failure, e entry, count int, state string) {
	s.refused.Queue(s.at.settle.Query("refused_again"), s.transport, e.route, e.key, e.row, count, f.RetryIn.Seconds(), reason(f), string(f.Policy), state)
}

// send writes the settlement and commits. gone is the number of deleted keyed rows.
func (s *settlement) send(ctx context.Context) (gone int, err error) {
	batch, sql := &pgx.Batch{}, s.at.settle
	if len(s.buckets) > 0 {
		batch.Queue(sql.Query("bump_buckets"), s.transport, s.buckets)
	}
	if s.routes {
		batch.Queue(sql.Query("bump_routes"), s.transport)
	}
	if len(s.keyed.ids) > 0 {
		batch.Queue(sql.Query("delete_outbox"), s.keyed.at, s.keyed.ids).Exec(func(tag pgconn.CommandTag) error {
			gone = int(tag.RowsAffected())
			return nil
		})
	}
	if len(s.unkeyed.ids) > 0 {
		batch.Queue(sql.Query("delete_unkeyed"), s.unkeyed.at, s.unkeyed.ids)
	}
	batch.QueuedQueries = append(batch.QueuedQueries, s.refused.QueuedQueries...)
	if len(s.freed.rows) > 0 {
		batch.Queue(sql.Query("unblock"), s.transport, s.freed.routes, s.freed.keys, s.freed.rows)
	}
	if s.routes && s.part == outbox.Retries {
		batch.Queue(sql.Query("due_with_route"), s.transport, s.freed.routes)
	}
	queueCommit(batch)
	err = s.conn.SendBatch(ctx, batch).Close()
	return gone, err
}

// reason is the text of a failure, clipped for its column.
func reason(f outbox.Failure) string { return sqlcore.Clip(f.Err.Error()) }
