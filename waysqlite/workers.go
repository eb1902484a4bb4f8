package waysqlite

import (
	"context"
	"database/sql"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/worker"
)

// ReportWorkers implements worker.Registry.
func (db *DB) ReportWorkers(ctx context.Context, r worker.Report) (stop bool, err error) {
	if err := db.checkSchema(ctx); err != nil {
		return false, err
	}
	text, err := sqlcore.WorkerReport(r)
	if err != nil {
		return false, err
	}
	err = db.write(ctx, func(tx *txn) error {
		if r.Ended {
			_, err := tx.exec(ctx, db.adminSQL.Query("forget_workers"), r.ID)
			return err
		}
		return tx.QueryRowContext(ctx, db.adminSQL.Query("report_workers"), r.ID, text).Scan(&stop)
	})
	return stop, translate(err)
}

// Workers implements admin.Workers.
func (db *DB) Workers(ctx context.Context) ([]admin.Worker, error) {
	return query(ctx, db, db.adminSQL.Query("workers"), func(rows *sql.Rows, w *admin.Worker) error {
		var text string
		var started, seen int64
		var requested sql.NullInt64
		if err := rows.Scan(&text, &started, &seen, &requested); err != nil {
			return err
		}
		w.StartedAt, w.SeenAt, w.StopRequestedAt = micros(started), micros(seen), microsOrNil(requested)
		return sqlcore.ReadWorkerReport(w, text)
	})
}

// StopWorkers implements admin.Workers.
func (db *DB) StopWorkers(ctx context.Context, ids ...string) (int, error) {
	return sqlcore.StopWorkers(ctx, db.change, ids)
}
