package waypg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/internal/sqlfile"
	"github.com/waybill-go/waybill/outbox"
)

// A release is a claim of parked rows, under the locks of their keys' buckets.
type release struct {
	holder
	lane      int16
	transport string
	rows      []outbox.ClaimedRow
	empty     []string // released keys of which nothing is parked
}

// ClaimReleasing implements outbox.FailureStore.
func (db *DB) ClaimReleasing(ctx context.Context, transport string, max outbox.Max) (outbox.Claim, error) {
	none := &release{}
	p, err := db.ready(ctx)
	if err != nil {
		return nil, err
	}
	id, err := db.relayed(ctx, p, transport)
	if err != nil || id == 0 {
		return none, err
	}
	var any bool
	if err := db.pool.QueryRow(ctx, p.failed.Query("any_releasing"), id).Scan(&any); err != nil || !any {
		return none, translate(err)
	}
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return nil, translate(err)
	}
	c := &release{holder: holder{db, p, conn}, lane: id, transport: transport}
	if err := c.claim(ctx, max); err != nil {
		c.end()
		return nil, translate(err)
	}
	switch {
	case len(c.rows) > 0:
		return c, nil
	case len(c.empty) > 0:
		return none, c.Settle(ctx, nil, nil) // they go on in the outbox
	}
	c.end()
	return none, nil
}

// claim locks buckets and then reads, as that of the outbox does.
func (c *release) claim(ctx context.Context, max outbox.Max) error {
	batch := &pgx.Batch{}
	c.queueBegin(batch)
	batch.Queue(c.at.failed.Query("lock_releasing"), c.lane, c.transport, lane.MaxBuckets)
	results := c.conn.SendBatch(ctx, batch)
	locked, err := c.locked(results)
	if err := errors.Join(err, results.Close()); err != nil || len(locked) == 0 {
		return err
	}
	rows, err := c.conn.Query(ctx, c.at.failed.Query("claim_releasing"), c.lane, c.transport, locked, max.Rows, max.Bytes)
	if err != nil {
		return err
	}
	defer rows.Close()
	held := map[string]bool{} // keys with a row of a waiting route
	for rows.Next() {
		r := lane.Row{Claimed: newRow()}
		rec := r.Claimed.Record
		var id *int64
		var message *[16]byte
		var name, meta *string
		var created *time.Time
		var failures, routeFailures *int
		var waits *bool
		if err := rows.Scan(&rec.Key, &r.Bucket, &id, &message, &name, &meta, &rec.Body, &created, &failures, &routeFailures, &waits); err != nil {
			return err
		}
		if id == nil {
			c.empty = append(c.empty, rec.Key)
			continue
		}
		if held[rec.Key] = held[rec.Key] || *waits; held[rec.Key] {
			continue
		}
		rec.ID, rec.Name, rec.DispatchedAt = *message, *name, created.UTC()
		rec.Problem = headers.Decode(rec, *meta)
		c.rows = append(c.rows, outbox.ClaimedRow{ID: -*id, Record: rec, Failures: *failures, RouteFailures: *routeFailures})
	}
	return rows.Err()
}

func (c *release) locked(results pgx.BatchResults) ([]int16, error) {
	if _, err := results.Exec(); err != nil {
		return nil, err
	}
	if _, err := scanSettings(results.QueryRow()); err != nil {
		return nil, err
	}
	found, err := results.Query()
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, pgx.RowTo[int16])
}

// Rows implements outbox.Claim.
func (c *release) Rows() []outbox.ClaimedRow { return c.rows }

// Settle implements outbox.Claim. A key whose last row was published goes on in
// the outbox.
func (c *release) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	if c.conn == nil {
		return nil
	}
	defer c.end()
	batch := &pgx.Batch{}
	batch.Queue(c.at.outbox.Query("bump_blocked"), c.lane) // first, as in every other settle
	var ids []int64
	var routes []string
	keys := c.empty
	for _, row := range published {
		ids = append(ids, -row.ID)
		if !slices.Contains(keys, row.Record.Key) {
			keys = append(keys, row.Record.Key)
		}
		if name := row.Record.Name; row.RouteFailures > 0 && !slices.Contains(routes, name) {
			routes = append(routes, name)
		}
	}
	batch.Queue(c.at.failed.Query("delete_failed"), ids)
	if len(routes) > 0 {
		batch.Queue(c.at.outbox.Query("unblock_routes"), c.lane, routes)
	}
	for _, f := range failed {
		c.queueFailure(batch, f)
	}
	batch.Queue(c.at.failed.Query("end_release"), c.lane, c.transport, keys)
	batch.Queue("COMMIT")
	_, err := c.send(ctx, batch)
	return translate(err)
}

// queueFailure adds what records that a parked row was refused.
func (c *release) queueFailure(batch *pgx.Batch, f outbox.Failure) {
	rec, reason := f.Row.Record, clip(f.Err.Error(), maxError)
	if f.Route {
		batch.Queue(c.at.outbox.Query("block"), c.lane, rec.Name, "", 0, lane.Route, rec.ID.String(), rec.Name, f.RetryIn.Seconds(), reason, string(f.Policy))
		return
	}
	again := f.RetryIn
	if f.Exhausted {
		again = 0 // what follows a skipped one does not wait for it
	}
	batch.Queue(c.at.failed.Query("retry_release"), c.lane, rec.Key, rec.ID.String(), rec.Name, string(f.Policy), reason, again.Seconds())
	switch {
	case f.Parks():
		batch.Queue(c.at.failed.Query("failed_again"), -f.Row.ID, "parked", c.lane)
		batch.Queue(c.at.failed.Query("park"), c.lane, rec.Key)
	case f.Exhausted:
		batch.Queue(c.at.failed.Query("failed_again"), -f.Row.ID, "skipped", c.lane)
	}
}

func failedSQL(p *place) sqlfile.Set { return p.failed }

// Failed implements admin.Database.
func (db *DB) Failed(ctx context.Context, q admin.FailedQuery) ([]admin.FailedMessage, error) {
	return query(ctx, db, failedSQL, "list", func(rows pgx.Rows, m *admin.FailedMessage) error {
		var id [16]byte
		err := rows.Scan(&m.Number, &m.State, &m.Transport, &m.Name, &m.Key, &id, &m.CreatedAt, &m.Failures, &m.FirstFailedAt, &m.FailedAt, &m.LastError, &m.RemovedAt, &m.Bytes)
		m.ID, m.CreatedAt, m.FailedAt = id, m.CreatedAt.UTC(), m.FailedAt.UTC()
		for _, at := range []*time.Time{m.FirstFailedAt, m.RemovedAt} {
			if at != nil {
				*at = at.UTC()
			}
		}
		return err
	}, q.State, q.Transport, q.Key, q.Name, nullIf(len(q.Numbers) == 0, q.Numbers), q.After, limit(q.Limit))
}

// FailedContent implements admin.Database.
func (db *DB) FailedContent(ctx context.Context, number int64) (c admin.FailedContent, err error) {
	p, err := db.ready(ctx)
	if err != nil {
		return c, err
	}
	var meta string
	err = db.pool.QueryRow(ctx, p.failed.Query("content"), number).Scan(&meta, &c.Body)
	if errors.Is(err, pgx.ErrNoRows) {
		return c, fmt.Errorf("failed message %d: %w", number, waybill.ErrNotFound)
	}
	c.Headers = json.RawMessage(meta)
	return c, translate(err)
}

// RetryFailed implements admin.Database.
func (db *DB) RetryFailed(ctx context.Context, numbers ...int64) (n int, err error) {
	p, err := db.ready(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := db.readLanes(ctx, p); err != nil { // an operator's process has dispatched to none
		return 0, err
	}
	err = db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for _, number := range slices.Sorted(slices.Values(numbers)) { // two operators lock in one order
			rec := &waybill.Record{}
			var transport, meta string
			err := tx.QueryRow(ctx, p.failed.Query("take"), number).Scan(&transport, (*[16]byte)(&rec.ID), &rec.Name, &rec.Key, &meta, &rec.Body, &rec.DispatchedAt)
			if errors.Is(err, pgx.ErrNoRows) {
				continue // somebody else was quicker
			}
			if err == nil {
				err = headers.Decode(rec, meta)
			}
			if err == nil {
				err = db.Write(ctx, tx, outbox.Row{Record: rec, Transport: transport})
			}
			if err != nil {
				return fmt.Errorf("failed message %d: %w", number, err)
			}
			n++
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("retry: %w", translate(err))
	}
	return n, nil
}

// RemoveFailed implements admin.Database.
func (db *DB) RemoveFailed(ctx context.Context, numbers ...int64) (n int, err error) {
	p, err := db.ready(ctx)
	if err != nil {
		return 0, err
	}
	err = pgx.BeginTxFunc(ctx, db.pool, readCommitted, func(tx pgx.Tx) error {
		// First: no key is released meanwhile, so that no relay has what is removed.
		if _, err := tx.Exec(ctx, p.admin.Query("release_bump"), ""); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, p.failed.Query("remove"), numbers)
		n = int(tag.RowsAffected())
		return err
	})
	return n, translate(err)
}
