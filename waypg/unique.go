package waypg

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// LockUnique implements outbox.Writer.
func (db *DB) LockUnique(ctx context.Context, tx pgx.Tx, key string) (waybill.MessageID, error) {
	u, err := db.unitOf(tx)
	if err != nil {
		return waybill.MessageID{}, err
	}
	return db.lockUnique(ctx, u, tx.QueryRow, key)
}

// LockUnique implements outbox.Writer.
func (s *SQLDB) LockUnique(ctx context.Context, tx *sql.Tx, key string) (waybill.MessageID, error) {
	u, err := s.unitOf(tx)
	if err != nil {
		return waybill.MessageID{}, err
	}
	return s.lockUnique(ctx, u, asking(tx), key)
}

// lockUnique is LockUnique in a unit of work, or in another transaction for nil.
func (db *DB) lockUnique(ctx context.Context, u *unit, ask queryRow, key string) (waybill.MessageID, error) {
	var none waybill.MessageID
	p, err := db.resolveInTx(ctx, ask)
	if err != nil {
		return none, err
	}
	var holder string
	var taken bool
	err = ask(ctx, p.unique.Query("lock"), key).Scan(&holder, &taken)
	switch {
	case err != nil:
		return none, translate(err)
	case taken:
		return waybill.ParseMessageID(holder)
	case u != nil:
		return u.UniqueHolder(key), nil
	}
	return none, nil
}

// confirmUnique returns the statement that gives row's unique key to its message.
func confirmUnique(p *catalog, row outbox.Row) (query string, args []any) {
	return p.unique.Query("confirm"), []any{row.Unique.Key, row.Record.ID.String(), row.Unique.For.Seconds()}
}
