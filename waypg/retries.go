package waypg

import (
	"context"

	"github.com/gofrs/uuid/v5"
	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlfile"
)

func retrySQL(p *catalog) sqlfile.Set { return p.retry }

// Retries implements admin.Retries.
func (db *DB) Retries(ctx context.Context, q admin.RetriesQuery) ([]admin.RetryingMessage, error) {
	return query(ctx, db, retrySQL, "list", func(rows pgx.Rows, m *admin.RetryingMessage) error {
		err := rows.Scan(&m.Row, &m.Transport, &m.Name, &m.Key, (*[16]byte)(&m.ID), &m.CreatedAt, &m.Failures, &m.Crashes, &m.DueAt, &m.Parked, &m.InFlight, &m.Bytes, &m.LastError)
		toUTC(&m.CreatedAt, m.DueAt)
		return err
	}, q.Transport, q.Key, q.After, limit(q.Limit))
}

// ReleaseParked implements sqlcore.OperatorTx.
func (o operatorTx) ReleaseParked(ctx context.Context, transport, key string) (int, error) {
	return o.Exec(ctx, "release_parked", transport, key)
}

// SkipParked implements sqlcore.OperatorTx. It makes dead letters as retryStore.Move does.
func (o operatorTx) SkipParked(ctx context.Context, transport, key, failureTransport string) (int, error) {
	holder := uuid.Must(uuid.NewV4()).String()
	rows, err := o.tx.Query(ctx, o.at.retry.Query("take_parked"), transport, key, holder)
	if err != nil {
		return 0, err
	}
	var id [16]byte
	var lease int64
	var of string
	var keys []string
	batch := &pgx.Batch{}
	batch.Queue(o.at.retryQueue.Query("pin"))
	_, err = pgx.ForEachRow(rows, []any{&id, &lease, &of}, func() error {
		batch.Queue(o.at.retry.Query("bury"), transport, waybill.MessageID(id).String(), holder, lease, failureTransport)
		keys = append(keys, of)
		return nil
	})
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	batch.Queue(o.at.retryQueue.Query("next"), transport, keys)
	return len(keys), o.tx.SendBatch(ctx, batch).Close()
}

// FailedAttempts implements admin.Retries.
func (db *DB) FailedAttempts(ctx context.Context, transport string, id waybill.MessageID) ([]admin.FailedAttempt, error) {
	return query(ctx, db, retrySQL, "attempts", func(rows pgx.Rows, a *admin.FailedAttempt) error {
		err := rows.Scan(&a.Attempt, &a.At, &a.Worker, &a.Handler, &a.ErrorType, &a.Error, &a.Stack, &a.Fingerprint)
		toUTC(&a.At)
		return err
	}, transport, id.String())
}
