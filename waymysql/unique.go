package waymysql

import (
	"context"
	"database/sql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// LockUnique implements outbox.Writer. If the first of several dispatchers that wait for
// one key rolls back, the server may end the transaction of another as a deadlock: a unit
// of work then fails with waybill.ErrTransactionLost, and may be run again.
func (db *DB) LockUnique(ctx context.Context, tx *sql.Tx, key string) (waybill.MessageID, error) {
	var none waybill.MessageID
	u, err := db.unitOf(tx)
	if err != nil {
		return none, err
	}
	if _, err := tx.ExecContext(ctx, db.unique.Query("lock"), []byte(key)); err != nil {
		return none, translate(err)
	}
	var holder []byte
	var taken bool
	err = tx.QueryRowContext(ctx, db.unique.Query("holder"), []byte(key)).Scan(&holder, &taken)
	switch {
	case err != nil:
		return none, translate(err)
	case taken:
		return waybill.MessageID(holder), nil
	case u != nil:
		return u.UniqueHolder(key), nil
	}
	return none, nil
}

// confirmUnique returns the statement that gives row's unique key to its message.
func (db *DB) confirmUnique(row outbox.Row) statement {
	return statement{text: db.unique.Query("confirm"), args: []any{hexID(row.Record.ID), row.Unique.For.Microseconds(), []byte(row.Unique.Key)}}
}

// pruneUnique removes a batch of expired unique keys.
func (db *DB) pruneUnique(ctx context.Context, tx *sql.Tx, max int) (int, error) {
	var old []clause
	err := each(ctx, tx, db.unique.Query("old"), func(rows *sql.Rows) error {
		var key []byte
		err := rows.Scan(&key)
		old = append(old, fill(db.unique.Query("key"), key))
		return err
	}, max)
	if err != nil || len(old) == 0 {
		return 0, err
	}
	s := fill(db.unique.Query("delete_old"), or(old))
	_, err = tx.ExecContext(ctx, s.text, s.args...)
	return len(old), err
}
