package waysqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// LockUnique implements outbox.Writer.
func (db *DB) LockUnique(ctx context.Context, tx *sql.Tx, key string) (waybill.MessageID, error) {
	u, err := db.unitOf(tx)
	if err != nil {
		return waybill.MessageID{}, err
	}
	var holder []byte
	var taken bool
	err = tx.QueryRowContext(ctx, db.uniqueSQL.Query("lock"), key, time.Now().UnixMicro()).Scan(&holder, &taken)
	switch {
	case err != nil:
		return waybill.MessageID{}, translate(err)
	case taken:
		return waybill.MessageID(holder), nil
	case u != nil:
		return u.UniqueHolder(key), nil
	}
	return waybill.MessageID{}, nil
}

// confirm gives row's unique key to its message.
func (db *DB) confirm(ctx context.Context, tx *txn, row outbox.Row) error {
	_, err := tx.exec(ctx, db.uniqueSQL.Query("confirm"), row.Unique.Key, row.Record.ID[:], time.Now().Add(row.Unique.For).UnixMicro())
	return translate(err)
}
