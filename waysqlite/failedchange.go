package waysqlite

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// byNumber is the filter of an action on given dead letters.
type byNumber struct {
	Numbers []int64 `json:"numbers"`
}

// audit records an operator's change of n messages in its transaction, unless n is 0.
func (db *DB) audit(ctx context.Context, tx *sql.Tx, action string, filter any, n int) error {
	if n == 0 {
		return nil
	}
	a := admin.ActionOf(ctx, filter)
	_, err := tx.ExecContext(ctx, db.failedSQL.Query("audit"), a.Actor, action, string(a.Filter), n)
	return err
}

// audited runs an operator's change, and records it if it changes something.
func (db *DB) audited(ctx context.Context, action string, filter any, change func(tx *txn) (int, error)) (n int, err error) {
	if err := db.checkSchema(ctx); err != nil {
		return 0, err
	}
	err = db.write(ctx, func(tx *txn) (err error) {
		if n, err = change(tx); err != nil {
			return err
		}
		return db.audit(ctx, tx.Tx, action, filter, n)
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", action, err)
	}
	return n, nil
}

// RetryFailed implements admin.Database.
func (db *DB) RetryFailed(ctx context.Context, numbers ...int64) (int, error) {
	workers := func(tx *sql.Tx) (int, error) {
		n, err := newTxn(tx).exec(ctx, db.failedSQL.Query("replay"), list(numbers))
		if err == nil && n > 0 {
			_, err = tx.ExecContext(ctx, db.failedSQL.Query("add_replayed"), list(numbers))
		}
		return n, err
	}
	return db.retryFailed(ctx, "failed retry", numbers, func(*waybill.Record) error { return nil }, workers)
}

// RetryFailedAsNew implements admin.DeadLetters.
func (db *DB) RetryFailedAsNew(ctx context.Context, numbers ...int64) (int, error) {
	workers := func(tx *sql.Tx) (n int, err error) {
		for _, number := range slices.Sorted(slices.Values(numbers)) {
			var old waybill.MessageID
			err := tx.QueryRowContext(ctx, db.failedSQL.Query("failed_id"), number).Scan(&old)
			if errors.Is(err, sql.ErrNoRows) {
				continue
			}
			id, err := waybill.NewMessageID()
			if err == nil {
				_, err = tx.ExecContext(ctx, db.failedSQL.Query("add_as_new"), number, id, path(waybill.HeaderCausationID), old.String(), path(waybill.HeaderHandledBy))
			}
			if err == nil {
				_, err = tx.ExecContext(ctx, db.failedSQL.Query("remove"), list([]int64{number}))
			}
			if err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	return db.retryFailed(ctx, "failed retry --as-new", numbers, sqlcore.AsNew, workers)
}

// path returns the JSON path of a header.
func path(header string) string { return `$."` + header + `"` }

// retryFailed dispatches skipped messages, each changed by change, and replays those of
// workers, in one transaction.
func (db *DB) retryFailed(ctx context.Context, action string, numbers []int64, change func(*waybill.Record) error, workers func(*sql.Tx) (int, error)) (n int, err error) {
	err = db.InTx(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		take := func(number int64) (row outbox.Row, meta string, err error) {
			rec := &waybill.Record{}
			row.Record = rec
			var created int64
			err = tx.QueryRowContext(ctx, db.failedSQL.Query("take"), number).Scan(&row.Transport, &rec.ID, &rec.Name, &rec.Key, &meta, &rec.Body, &created)
			rec.DispatchedAt = micros(created)
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
		replayed, err := workers(tx)
		if n += replayed; err != nil {
			return err
		}
		return db.audit(ctx, tx, action, byNumber{numbers}, n)
	})
	if err != nil {
		return 0, fmt.Errorf("retry: %w", translate(err))
	}
	return n, nil
}

// EditFailed implements admin.DeadLetters.
func (db *DB) EditFailed(ctx context.Context, number int64, from, to []byte) error {
	filter := map[string]any{}
	if err := json.Unmarshal(admin.ActionOf(ctx, struct{}{}).Filter, &filter); err != nil {
		return fmt.Errorf("filter of the action: %w", err)
	}
	filter["number"], filter["original_body_base64"] = number, base64.StdEncoding.EncodeToString(from)
	text, _ := json.Marshal(filter) // was JSON
	ctx = admin.WithAction(ctx, admin.Action{Actor: admin.ActionOf(ctx, nil).Actor, Filter: text})
	n, err := db.audited(ctx, "failed edit", nil, func(tx *txn) (int, error) {
		return tx.exec(ctx, db.failedSQL.Query("edit"), number, from, to)
	})
	if err == nil && n == 0 {
		err = fmt.Errorf("failed message %d: %w", number, admin.ErrChanged)
	}
	return err
}

// RemoveFailed implements admin.Database.
func (db *DB) RemoveFailed(ctx context.Context, numbers ...int64) (int, error) {
	return db.audited(ctx, "failed remove", byNumber{numbers}, func(tx *txn) (int, error) {
		return tx.exec(ctx, db.failedSQL.Query("remove"), list(numbers))
	})
}
