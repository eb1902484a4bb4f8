package waypg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
	"github.com/waybill-go/waybill/outbox"
)

func failedSQL(p *catalog) sqlfile.Set { return p.failed }

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
	p, err := db.ensureSchema(ctx)
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
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return 0, err
	}
	if err := db.refresh(ctx, p, db.pool.QueryRow); err != nil { // an operator's process may know no transport
		return 0, err
	}
	err = db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		take := func(number int64) (row outbox.Row, meta string, err error) {
			rec := &waybill.Record{}
			row.Record = rec
			err = tx.QueryRow(ctx, p.failed.Query("take"), number).Scan(&row.Transport, (*[16]byte)(&rec.ID), &rec.Name, &rec.Key, &meta, &rec.Body, &rec.DispatchedAt)
			return row, meta, err
		}
		n, err = sqlcore.RetryFailed(numbers, take, func(row outbox.Row) error { return db.Write(ctx, tx, row) })
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("retry: %w", translate(err))
	}
	return n, nil
}

// RemoveFailed implements admin.Database.
func (db *DB) RemoveFailed(ctx context.Context, numbers ...int64) (n int, err error) {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return 0, err
	}
	tag, err := db.pool.Exec(ctx, p.failed.Query("remove"), numbers)
	return int(tag.RowsAffected()), translate(err)
}
