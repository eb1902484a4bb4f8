package waysqlite

import (
	"cmp"
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
)

// Retries implements admin.Retries.
func (db *DB) Retries(ctx context.Context, q admin.RetriesQuery) ([]admin.RetryingMessage, error) {
	return query(ctx, db, db.retrySQL.Query("list"), func(rows *sql.Rows, m *admin.RetryingMessage) error {
		var created int64
		var due sql.NullInt64
		err := rows.Scan(&m.Row, &m.Transport, &m.Name, &m.Key, &m.ID, &created, &m.Failures, &m.Crashes, &due, &m.Parked, &m.InFlight, &m.Bytes, &m.LastError)
		m.CreatedAt, m.DueAt = micros(created), microsOrNil(due)
		return err
	}, q.Transport, q.Key, q.After, cmp.Or(q.Limit, -1), time.Now().UnixMicro())
}

// ReleaseParked implements sqlcore.OperatorTx.
func (o operatorTx) ReleaseParked(ctx context.Context, transport, key string) (int, error) {
	return o.Exec(ctx, "release_parked", transport, key)
}

// SkipParked implements sqlcore.OperatorTx. It makes dead letters as retryStore.Move does.
func (o operatorTx) SkipParked(ctx context.Context, transport, key, failureTransport string) (int, error) {
	rows, err := o.query(ctx, o.db.retrySQL.Query("parked"), transport, key)
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	heads, keys := []int64{}, map[string]bool{}
	for rows.Next() {
		var id int64
		var of string
		if err := rows.Scan(&id, &of); err != nil {
			return 0, err
		}
		heads, keys[of] = append(heads, id), true
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	for _, id := range heads {
		if err := (retryStore{o.db}).place(ctx, o.txn, id, sqlcore.RetryRow{DeadLetters: failureTransport}); err != nil {
			return 0, err
		}
	}
	return len(heads), next(ctx, o.txn, o.db.retryQueueSQL, transport, keys)
}

// FailedAttempts implements admin.Retries.
func (db *DB) FailedAttempts(ctx context.Context, transport string, id waybill.MessageID) ([]admin.FailedAttempt, error) {
	return query(ctx, db, db.retrySQL.Query("attempts"), func(rows *sql.Rows, a *admin.FailedAttempt) error {
		var at int64
		err := rows.Scan(&a.Attempt, &at, &a.Worker, &a.Handler, &a.ErrorType, &a.Error, &a.Stack, &a.Fingerprint)
		a.At = micros(at)
		return err
	}, transport, id[:])
}
