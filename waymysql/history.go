package waymysql

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/history"
)

// AddHistory implements history.Store.
func (db *DB) AddHistory(ctx context.Context, rows []history.Row) error {
	return translate(db.inTx(ctx, func(tx *sql.Tx) error {
		for _, row := range rows {
			if _, err := tx.ExecContext(ctx, db.history.Query("add"), row.Args()...); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, db.history.Query("prune"), history.Minute(time.Now().Add(-history.Retention)), history.PruneBatch)
		return err
	}))
}

// History implements history.Store.
func (db *DB) History(ctx context.Context, q history.Query) ([]history.Row, error) {
	name, args, err := q.Statement()
	if err != nil {
		return nil, err
	}
	return query(ctx, db, db.history.Query(name), func(rows *sql.Rows, row *history.Row) error { return row.Scan(rows.Scan) }, args...)
}
