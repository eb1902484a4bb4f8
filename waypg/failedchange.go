package waypg

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// byNumber is the filter of an action on given dead letters.
type byNumber struct {
	Numbers []int64 `json:"numbers"`
}

// executor is a transaction, or a pool.
type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// audit records an operator's change of n messages.
func audit(ctx context.Context, p *catalog, tx executor, action string, filter any, n int) error {
	a := admin.ActionOf(ctx, filter)
	_, err := tx.Exec(ctx, p.failed.Query("audit"), a.Actor, action, string(a.Filter), n)
	return err
}

// audited runs an operator's change in a transaction, and records it if it changes
// something.
func (db *DB) audited(ctx context.Context, action string, filter any, change func(tx pgx.Tx, p *catalog) (int, error)) (n int, err error) {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return 0, err
	}
	err = pgx.BeginTxFunc(ctx, db.pool, readCommitted, func(tx pgx.Tx) (err error) {
		if n, err = change(tx, p); err != nil || n == 0 {
			return err
		}
		return audit(ctx, p, tx, action, filter, n)
	})
	if err != nil {
		return 0, translate(err)
	}
	return n, nil
}

// RetryFailed implements admin.Database.
func (db *DB) RetryFailed(ctx context.Context, numbers ...int64) (int, error) {
	workers := func(tx pgx.Tx, p *catalog) (n int, err error) {
		err = tx.QueryRow(ctx, p.failed.Query("replay"), numbers).Scan(&n)
		return n, err
	}
	return db.retryFailed(ctx, "failed retry", numbers, func(*waybill.Record) error { return nil }, workers)
}

// RetryFailedAsNew implements admin.DeadLetters.
func (db *DB) RetryFailedAsNew(ctx context.Context, numbers ...int64) (int, error) {
	workers := func(tx pgx.Tx, p *catalog) (n int, err error) {
		for _, number := range slices.Sorted(slices.Values(numbers)) {
			id, err := waybill.NewMessageID()
			if err != nil {
				return n, err
			}
			tag, err := tx.Exec(ctx, p.failed.Query("as_new"), number, id.String(), waybill.HeaderCausationID, waybill.HeaderHandledBy)
			if err != nil {
				return n, err
			}
			n += int(tag.RowsAffected())
		}
		return n, nil
	}
	return db.retryFailed(ctx, "failed retry --as-new", numbers, sqlcore.AsNew, workers)
}

// retryFailed dispatches skipped messages, each changed by change, and replays those of
// workers, in one transaction.
func (db *DB) retryFailed(ctx context.Context, action string, numbers []int64, change func(*waybill.Record) error, workers func(pgx.Tx, *catalog) (int, error)) (n int, err error) {
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
		write := func(row outbox.Row) error {
			if err := change(row.Record); err != nil {
				return err
			}
			return db.Write(ctx, tx, row)
		}
		if n, err = sqlcore.RetryFailed(numbers, take, write); err != nil {
			return err
		}
		replayed, err := workers(tx, p)
		if n += replayed; err != nil || n == 0 {
			return err
		}
		return audit(ctx, p, tx, action, byNumber{numbers}, n)
	})
	if err != nil {
		return 0, fmt.Errorf("retry: %w", translate(err))
	}
	return n, nil
}

// EditFailed implements admin.DeadLetters.
func (db *DB) EditFailed(ctx context.Context, number int64, from, to []byte) error {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return err
	}
	a := admin.ActionOf(ctx, struct{}{})
	tag, err := db.pool.Exec(ctx, p.failed.Query("edit"), number, from, to, a.Actor, string(a.Filter))
	if err == nil && tag.RowsAffected() == 0 {
		return fmt.Errorf("failed message %d: %w", number, admin.ErrChanged)
	}
	return translate(err)
}

// RemoveFailed implements admin.Database.
func (db *DB) RemoveFailed(ctx context.Context, numbers ...int64) (int, error) {
	return db.audited(ctx, "failed remove", byNumber{numbers}, func(tx pgx.Tx, p *catalog) (int, error) {
		tag, err := tx.Exec(ctx, p.failed.Query("remove"), numbers)
		return int(tag.RowsAffected()), err
	})
}
