package waypg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/outbox"
)

// keyed locks buckets in one round trip and reads them in the next, in separate
// statements.
func (c *claim) keyed(ctx context.Context, transport string, limit outbox.ClaimLimit) (again bool, err error) {
	server, state, err := c.lock(ctx, limit)
	switch {
	case err != nil:
		return false, err
	case server.transport != transport:
		c.db.recheckSchema()
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
	batch.Queue(c.at.outbox.Query("lock_buckets"), args...)
	batch.Queue(c.at.outbox.Query("claim_state"), c.transport)
	results := c.conn.SendBatch(ctx, batch)
	defer func() { err = errors.Join(err, results.Close()) }()
	if server, err = scanBegin(results); err != nil {
		return server, state, err
	}
	if _, err = results.Exec(); err != nil {
		return server, state, err
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

// read reads the locked buckets above their positions. current is false if a key
// was unblocked after state was read.
func (c *claim) read(ctx context.Context, state claimState, perBucket, bytes int) (found []readpos.Row, current bool, err error) {
	reads := c.Reads(state.locked, state.routes)
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
