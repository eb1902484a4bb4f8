package waysqlite

import (
	"context"
	"database/sql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

type operator = sqlcore.Operator // embedded by a name that is not exported

// operatorTx implements sqlcore.OperatorTx.
type operatorTx struct {
	db *DB
	*txn
}

// Exec implements sqlcore.OperatorTx.
func (o operatorTx) Exec(ctx context.Context, statement string, args ...any) (int, error) {
	for i, arg := range args {
		if numbers, ok := arg.([]int64); ok {
			args[i] = list(numbers)
		}
	}
	return o.exec(ctx, o.db.failedSQL.Query(statement), args...)
}

// Take implements sqlcore.OperatorTx.
func (o operatorTx) Take(ctx context.Context, number int64) (row outbox.Row, err error) {
	rec, meta, created := &waybill.Record{Headers: map[string]string{}}, "", int64(0)
	row.Record = rec
	err = o.QueryRowContext(ctx, o.db.failedSQL.Query("take"), number).Scan(&row.Transport, &rec.ID, &rec.Name, &rec.Key, &meta, &rec.Body, &created)
	if err == nil {
		err = headers.Decode(rec, meta)
	}
	rec.DispatchedAt = micros(created)
	return row, err
}

// Replay implements sqlcore.OperatorTx.
func (o operatorTx) Replay(ctx context.Context, numbers []int64) (int, error) {
	n, err := o.Exec(ctx, "replay", numbers)
	if err == nil && n > 0 {
		_, err = o.Exec(ctx, "add_replayed", numbers)
	}
	return n, err
}

// Write implements sqlcore.OperatorTx.
func (o operatorTx) Write(ctx context.Context, row outbox.Row) error {
	return o.db.Write(ctx, o.Tx, row)
}

// change is a sqlcore.Transact without dispatches.
func (db *DB) change(ctx context.Context, fn func(ctx context.Context, tx sqlcore.OperatorTx) error) error {
	return db.write(ctx, func(tx *txn) error { return fn(ctx, operatorTx{db, tx}) })
}

// dispatchAgain is a sqlcore.Transact for dispatches.
func (db *DB) dispatchAgain(ctx context.Context, fn func(ctx context.Context, tx sqlcore.OperatorTx) error) error {
	return translate(db.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error { return fn(ctx, operatorTx{db, newTxn(tx, &db.kept)}) }))
}
