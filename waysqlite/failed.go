package waysqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// Failed implements admin.Database.
func (db *DB) Failed(ctx context.Context, q admin.FailedQuery) ([]admin.FailedMessage, error) {
	return query(ctx, db, db.failedSQL.Query("list"), func(rows *sql.Rows, m *admin.FailedMessage) error {
		var created, at int64
		var first, removed sql.NullInt64
		err := rows.Scan(&m.Number, &m.State, &m.Transport, &m.Name, &m.Key, &m.ID, &created, &m.Failures, &first, &at, &m.LastError, &removed, &m.Bytes)
		m.CreatedAt, m.FirstFailedAt, m.FailedAt, m.RemovedAt = micros(created), microsOrNil(first), micros(at), microsOrNil(removed)
		return err
	}, q.State, q.Transport, q.Key, q.Name, list(q.Numbers), q.After, cmp.Or(q.Limit, -1))
}

// FailedContent implements admin.Database. Headers of another program's that are
// no JSON are one string of it.
func (db *DB) FailedContent(ctx context.Context, number int64) (c admin.FailedContent, err error) {
	if err := db.checkSchema(ctx); err != nil {
		return c, err
	}
	var meta string
	err = db.reader.QueryRowContext(ctx, db.failedSQL.Query("content"), number).Scan(&meta, &c.Body)
	if errors.Is(err, sql.ErrNoRows) {
		return c, fmt.Errorf("failed message %d: %w", number, waybill.ErrNotFound)
	}
	c.Headers = json.RawMessage(meta)
	if !json.Valid(c.Headers) {
		c.Headers, _ = json.Marshal(meta)
	}
	return c, translate(err)
}

// RetryFailed implements admin.Database.
func (db *DB) RetryFailed(ctx context.Context, numbers ...int64) (n int, err error) {
	err = db.InTx(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		take := func(number int64) (row outbox.Row, meta string, err error) {
			rec := &waybill.Record{}
			row.Record = rec
			var created int64
			err = tx.QueryRowContext(ctx, db.failedSQL.Query("take"), number).Scan(&row.Transport, &rec.ID, &rec.Name, &rec.Key, &meta, &rec.Body, &created)
			rec.DispatchedAt = micros(created)
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
	if err := db.checkSchema(ctx); err != nil {
		return 0, err
	}
	err = db.write(ctx, func(tx *txn) error {
		n, err = tx.exec(ctx, db.failedSQL.Query("remove"), list(numbers))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("remove: %w", err)
	}
	return n, nil
}
