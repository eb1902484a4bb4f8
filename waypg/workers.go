package waypg

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/worker"
)

// ReportWorkers implements worker.Registry.
func (db *DB) ReportWorkers(ctx context.Context, r worker.Report) (told worker.Instructions, err error) {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return told, err
	}
	if r.Ended {
		_, err = db.pool.Exec(ctx, p.outbox.Query("forget_report"), r.ID)
		return told, translate(err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return told, err
	}
	err = db.pool.QueryRow(ctx, p.outbox.Query("report_workers"), r.ID, r.Host, r.PID, string(text)).Scan(&told.Stop, &told.Paused)
	return told, translate(err)
}

// Workers implements admin.Workers.
func (db *DB) Workers(ctx context.Context) ([]admin.Worker, error) {
	return query(ctx, db, adminSQL, "workers", func(rows pgx.Rows, w *admin.Worker) error {
		var text []byte
		if err := rows.Scan(&text, &w.StartedAt, &w.SeenAt, &w.AgeSeconds, &w.StopRequestedAt); err != nil {
			return err
		}
		toUTC(&w.StartedAt, &w.SeenAt, w.StopRequestedAt)
		w.AgeSeconds = sqlcore.Age(w.AgeSeconds)
		return json.Unmarshal(text, &w.Report)
	})
}

// PausedTransports implements admin.Workers.
func (db *DB) PausedTransports(ctx context.Context) ([]admin.Pause, error) {
	return query(ctx, db, adminSQL, "paused", func(rows pgx.Rows, p *admin.Pause) error {
		err := rows.Scan(&p.Transport, &p.Since, &p.Actor, &p.Reason)
		toUTC(&p.Since)
		return err
	})
}
