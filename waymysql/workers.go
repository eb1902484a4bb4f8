package waymysql

import (
	"context"
	"database/sql"
	"strings"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/worker"
)

// ReportWorkers implements worker.Registry.
func (db *DB) ReportWorkers(ctx context.Context, r worker.Report) (stop bool, err error) {
	if err := db.ensureSchema(ctx); err != nil {
		return false, err
	}
	id := strings.ReplaceAll(r.ID, "-", "")
	if r.Ended {
		_, err := db.pool.ExecContext(ctx, db.outbox.Query("forget_report"), id)
		return false, translate(err)
	}
	text, err := sqlcore.WorkerReport(r)
	if err != nil {
		return false, err
	}
	if _, err := db.pool.ExecContext(ctx, db.outbox.Query("report_workers"), id, r.Host, r.PID, text); err != nil {
		return false, translate(err)
	}
	err = db.pool.QueryRowContext(ctx, db.outbox.Query("stop_requested"), id).Scan(&stop)
	return stop, translate(err)
}

// Workers implements admin.Workers.
func (db *DB) Workers(ctx context.Context) ([]admin.Worker, error) {
	return query(ctx, db, db.admin.Query("workers"), func(rows *sql.Rows, w *admin.Worker) error {
		var text string
		if err := rows.Scan(&text, moment{&w.StartedAt}, moment{&w.SeenAt}, maybe{&w.StopRequestedAt}); err != nil {
			return err
		}
		return sqlcore.ReadWorkerReport(w, text)
	})
}

// StopWorkers implements admin.Workers.
func (db *DB) StopWorkers(ctx context.Context, ids ...string) (int, error) {
	return sqlcore.StopWorkers(ctx, db.change, ids)
}
