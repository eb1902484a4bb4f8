package waypg

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/internal/sqlfile"
)

func historySQL(p *catalog) sqlfile.Set { return p.history }

// AddHistory implements history.Store, in one round trip.
func (db *DB) AddHistory(ctx context.Context, rows []history.Row) error {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return err
	}
	batch := &pgx.Batch{}
	for _, row := range rows {
		batch.Queue(p.history.Query("add"), row.Args()...)
	}
	batch.Queue(p.history.Query("prune"), history.Minute(time.Now().Add(-history.Retention)), history.PruneBatch)
	return translate(db.pool.SendBatch(ctx, batch).Close())
}

// History implements history.Store.
func (db *DB) History(ctx context.Context, q history.Query) ([]history.Row, error) {
	name, args, err := q.Statement()
	if err != nil {
		return nil, err
	}
	return query(ctx, db, historySQL, name, func(rows pgx.Rows, row *history.Row) error { return row.Scan(rows.Scan) }, args...)
}
