package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// Failed implements admin.Database.
func (db *DB) Failed(ctx context.Context, q admin.FailedQuery) ([]admin.FailedMessage, error) {
	return query(ctx, db, db.failed.Query("list"), func(rows *sql.Rows, m *admin.FailedMessage) error {
		return rows.Scan(&m.Number, &m.State, &m.Transport, &m.Name, &m.Key, id{&m.ID}, moment{&m.CreatedAt}, &m.Failures, maybe{&m.FirstFailedAt}, moment{&m.FailedAt}, &m.LastError, maybe{&m.RemovedAt}, &m.Bytes, &m.Source, &m.FailureTransport, &m.Handler, &m.ErrorType, &m.Fingerprint)
	}, append(twice(q.State, q.Transport, q.Key, q.Name, join(q.Numbers)), q.After, limit(q.Limit))...)
}

// FailedContent implements admin.Database.
func (db *DB) FailedContent(ctx context.Context, number int64) (c admin.FailedContent, err error) {
	if err := db.ensureSchema(ctx); err != nil {
		return c, err
	}
	err = db.pool.QueryRowContext(ctx, db.failed.Query("content"), number).Scan((*[]byte)(&c.Headers), &c.Body)
	if errors.Is(err, sql.ErrNoRows) {
		return c, fmt.Errorf("failed message %d: %w", number, waybill.ErrNotFound)
	}
	return c, translate(err)
}

// RetryFailed implements admin.Database.
func (db *DB) RetryFailed(ctx context.Context, numbers ...int64) (n int, err error) {
	if err := db.writer(ctx); err != nil {
		return 0, err
	}
	if _, err := db.readTransports(ctx); err != nil { // an operator's process has dispatched to none
		return 0, err
	}
	err = db.InTx(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		take := func(number int64) (outbox.Row, string, error) { return db.takeSkipped(ctx, tx, number) }
		n, err = sqlcore.RetryFailed(numbers, take, func(row outbox.Row) error { return db.Write(ctx, tx, row) })
		if err != nil {
			return err
		}
		replayed, err := db.replay(ctx, tx, numbers)
		n += replayed
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("retry: %w", translate(err))
	}
	return n, nil
}

// takeSkipped removes a skipped message from the dead letters.
func (db *DB) takeSkipped(ctx context.Context, tx *sql.Tx, number int64) (row outbox.Row, meta string, err error) {
	rec := &waybill.Record{}
	row.Record = rec
	if err := tx.QueryRowContext(ctx, db.failed.Query("skipped"), number).Scan(&row.Transport, id{&rec.ID}, &rec.Name, &rec.Key, &meta, &rec.Body, moment{&rec.DispatchedAt}); err != nil {
		return row, "", err
	}
	_, err = tx.ExecContext(ctx, db.failed.Query("delete_skipped"), number)
	return row, meta, err
}

// replay puts workers' messages into the retry queues again, and returns how many.
func (db *DB) replay(ctx context.Context, tx *sql.Tx, numbers []int64) (int, error) {
	ids, err := idsOf(ctx, tx, db.failed.Query("replayable"), jsonIDs(numbers))
	for _, name := range []string{"retrying", "replay"} {
		if err == nil && len(ids) > 0 {
			_, err = tx.ExecContext(ctx, db.failed.Query(name), jsonIDs(ids))
		}
	}
	return len(ids), err
}

// RemoveFailed implements admin.Database.
func (db *DB) RemoveFailed(ctx context.Context, numbers ...int64) (n int, err error) {
	if err := db.writer(ctx); err != nil {
		return 0, err
	}
	done, err := db.pool.ExecContext(ctx, db.failed.Query("remove"), jsonIDs(numbers))
	if err != nil {
		return 0, translate(err)
	}
	removed, err := done.RowsAffected()
	return int(removed), translate(err)
}
