package waypg

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/worker"
)

// ReportWorkers implements worker.Registry.
func (db *DB) ReportWorkers(ctx context.Context, r worker.Report) (stop bool, err error) {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return false, err
	}
	if r.Ended {
		_, err = db.pool.Exec(ctx, p.outbox.Query("forget_report"), r.ID)
		return false, translate(err)
	}
	text, err := sqlcore.WorkerReport(r)
	if err != nil {
		return false, err
	}
	err = db.pool.QueryRow(ctx, p.outbox.Query("report_workers"), r.ID, r.Host, r.PID, text).Scan(&stop)
	return stop, translate(err)
}

// Workers implements admin.Workers.
func (db *DB) Workers(ctx context.Context) ([]admin.Worker, error) {
	return query(ctx, db, adminSQL, "workers", func(rows pgx.Rows, w *admin.Worker) error {
		var text string
		if err := rows.Scan(&text, &w.StartedAt, &w.SeenAt, &w.StopRequestedAt); err != nil {
			return err
		}
		w.StartedAt, w.SeenAt = w.StartedAt.UTC(), w.SeenAt.UTC()
		if w.StopRequestedAt != nil {
			*w.StopRequestedAt = w.StopRequestedAt.UTC()
		}
		return sqlcore.ReadWorkerReport(w, text)
	})
}

// StopWorkers implements admin.Workers.
func (db *DB) StopWorkers(ctx context.Context, ids ...string) (int, error) {
	return sqlcore.StopWorkers(ctx, db.change, ids)
}
