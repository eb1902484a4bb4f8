package waymysql

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

type operator = sqlcore.Operator // embedded by a name that is not exported

// operatorTx implements sqlcore.OperatorTx.
type operatorTx struct {
	db *DB
	tx *sql.Tx
}

// Exec implements sqlcore.OperatorTx.
func (o operatorTx) Exec(ctx context.Context, statement string, args ...any) (int, error) {
	for i, arg := range args {
		if numbers, ok := arg.([]int64); ok {
			args[i] = jsonIDs(numbers)
		}
	}
	return affected(o.tx.ExecContext(ctx, o.db.failed.Query(statement), args...))
}

// affected returns how many rows a statement has changed.
func affected(done sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := done.RowsAffected()
	return int(n), err
}

// Take implements sqlcore.OperatorTx.
func (o operatorTx) Take(ctx context.Context, number int64) (row outbox.Row, err error) {
	rec, meta := &waybill.Record{Headers: map[string]string{}}, ""
	row.Record = rec
	err = o.tx.QueryRowContext(ctx, o.db.failed.Query("skipped"), number).Scan(&row.Transport, id{&rec.ID}, &rec.Name, &rec.Key, &meta, &rec.Body, moment{&rec.DispatchedAt})
	if err == nil {
		err = headers.Decode(rec, meta)
	}
	if err == nil {
		_, err = o.Exec(ctx, "delete_skipped", number)
	}
	return row, err
}

// Replay implements sqlcore.OperatorTx.
func (o operatorTx) Replay(ctx context.Context, numbers []int64) (int, error) {
	numbers = slices.Compact(slices.Sorted(slices.Values(numbers))) // a table of them has each as often as it is given
	ids, err := idsOf(ctx, o.tx, o.db.failed.Query("replayable"), jsonIDs(numbers))
	for _, name := range []string{"retrying", "replay"} {
		if err == nil && len(ids) > 0 {
			_, err = o.Exec(ctx, name, ids)
		}
	}
	return len(ids), err
}

// Write implements sqlcore.OperatorTx.
func (o operatorTx) Write(ctx context.Context, row outbox.Row) error {
	return o.db.Write(ctx, o.tx, row)
}

// change is a sqlcore.Transact without dispatches.
func (db *DB) change(ctx context.Context, fn func(ctx context.Context, tx sqlcore.OperatorTx) error) error {
	return translate(db.inTx(ctx, func(tx *sql.Tx) error { return fn(ctx, operatorTx{db, tx}) }))
}

// dispatchAgain is a sqlcore.Transact for dispatches.
func (db *DB) dispatchAgain(ctx context.Context, fn func(ctx context.Context, tx sqlcore.OperatorTx) error) error {
	if err := db.writer(ctx); err != nil {
		return err
	}
	if _, err := db.readTransports(ctx, db.pool); err != nil { // an operator's process has dispatched to none
		return err
	}
	return translate(db.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error { return fn(ctx, operatorTx{db, tx}) }))
}

// EditFailed implements admin.DeadLetters.
func (db *DB) EditFailed(ctx context.Context, number int64, from, to []byte) error {
	if bytes.Equal(from, to) {
		return nil // the server counts rows that become others
	}
	return db.operator.EditFailed(ctx, number, from, to)
}

// ReleaseParked implements sqlcore.OperatorTx. The rows are found before they are locked:
// claims lock others of the same index.
func (o operatorTx) ReleaseParked(ctx context.Context, transport, key string) (int, error) {
	ids, err := o.parked(ctx, "parked", transport, key)
	if err != nil {
		return 0, err
	}
	return o.Exec(ctx, "release_parked", ids)
}

// parked finds rows with a statement, outside of the transaction.
func (o operatorTx) parked(ctx context.Context, statement, transport, key string) ([]int64, error) {
	return idsOf(ctx, o.db.pool, o.db.retry.Query(statement), append([]any{[]byte(transport)}, twice(key)...)...)
}

// SkipParked implements sqlcore.OperatorTx. It finds the rows as ReleaseParked does, and makes
// dead letters as retryStore.Move does, of those that are still parked.
func (o operatorTx) SkipParked(ctx context.Context, transport, key, failureTransport string) (int, error) {
	ids, err := o.parked(ctx, "parked_heads", transport, key)
	if err != nil {
		return 0, err
	}
	s, tx := retryStore{o.db}, &queueTx{db: o.db, conn: o.tx, sql: o.db.retryQueue}
	var freed []sqlcore.DeliveredRow
	for _, row := range slices.Sorted(slices.Values(ids)) {
		rec := &waybill.Record{}
		r := sqlcore.RetryRow{Record: rec, DeadLetters: failureTransport}
		err := o.tx.QueryRowContext(ctx, s.db.retry.Query("parked_head"), row).Scan(id{&rec.ID}, &rec.Name, &rec.Key, &r.Headers, &rec.Body, moment{&rec.DispatchedAt}, &r.Failures)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return 0, err
		}
		freed = append(freed, sqlcore.DeliveredRow{ID: row, Key: rec.Key})
		tx.next = append(tx.next, s.bury(transport, r))
		tx.exec(s.db.retry.Query("remove"), row)
		if err := tx.send(ctx); err != nil {
			return 0, err
		}
	}
	if err = tx.freeNext(ctx, transport, freed); err == nil {
		err = tx.send(ctx)
	}
	return len(freed), err
}
