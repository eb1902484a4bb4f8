package waypg

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/outbox"
)

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
	if c.part == outbox.Unkeyed {
		if n := len(c.rows); n > 0 {
			*last = c.rows[n-1].ID // rows behind it were beyond the limit of bytes
		}
		c.pos.Unkeyed.Took(after, time.Since(began))
		c.pos.Unkeyed.Read(*last)
	}
	switch {
	case server.transport != transport:
		c.rows = nil
		c.db.recheckSchema()
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
