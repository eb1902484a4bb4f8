package waypg

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

type operator = sqlcore.Operator // embedded by a name that is not exported

// operatorTx implements sqlcore.OperatorTx.
type operatorTx struct {
	db *DB
	at *catalog
	tx pgx.Tx
}

// Exec implements sqlcore.OperatorTx.
func (o operatorTx) Exec(ctx context.Context, statement string, args ...any) (int, error) {
	tag, err := o.tx.Exec(ctx, o.at.failed.Query(statement), args...)
	return int(tag.RowsAffected()), err
}

// Take implements sqlcore.OperatorTx.
func (o operatorTx) Take(ctx context.Context, number int64) (row outbox.Row, err error) {
	rec, meta := &waybill.Record{Headers: map[string]string{}}, ""
	row.Record = rec
	err = o.tx.QueryRow(ctx, o.at.failed.Query("take"), number).Scan(&row.Transport, (*[16]byte)(&rec.ID), &rec.Name, &rec.Key, &meta, &rec.Body, &rec.DispatchedAt)
	if err == nil {
		err = headers.Decode(rec, meta)
	}
	return row, err
}

// Replay implements sqlcore.OperatorTx.
func (o operatorTx) Replay(ctx context.Context, numbers []int64) (int, error) {
	return o.Exec(ctx, "replay", numbers)
}

// Write implements sqlcore.OperatorTx.
func (o operatorTx) Write(ctx context.Context, row outbox.Row) error {
	return o.db.Write(ctx, o.tx, row)
}

// change is a sqlcore.Transact without dispatches.
func (db *DB) change(ctx context.Context, fn func(ctx context.Context, tx sqlcore.OperatorTx) error) error {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return err
	}
	return translate(db.inTx(ctx, func(tx pgx.Tx) error {
		return fn(ctx, operatorTx{db, p, tx})
	}))
}

// dispatchAgain is a sqlcore.Transact for dispatches.
func (db *DB) dispatchAgain(ctx context.Context, fn func(ctx context.Context, tx sqlcore.OperatorTx) error) error {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return err
	}
	if err := db.refresh(ctx, p, db.pool.QueryRow); err != nil { // an operator's process may know no transport
		return err
	}
	return translate(db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, p.failed.Query("limit_silence"), db.idle.Milliseconds()); err != nil {
			return err
		}
		return fn(ctx, operatorTx{db, p, tx})
	}))
}
