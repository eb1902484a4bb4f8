package waymysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/worker"
)

// ReportWorkers implements worker.Registry.
func (db *DB) ReportWorkers(ctx context.Context, r worker.Report) (told worker.Instructions, err error) {
	if err := db.ensureSchema(ctx); err != nil {
		return told, err
	}
	id := strings.ReplaceAll(r.ID, "-", "")
	if r.Ended {
		_, err := db.pool.ExecContext(ctx, db.outbox.Query("forget_report"), id)
		return told, translate(err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return told, err
	}
	if _, err := db.pool.ExecContext(ctx, db.outbox.Query("report_workers"), id, r.Host, r.PID, string(text)); err != nil {
		return told, translate(err)
	}
	err = each(ctx, db.pool, db.outbox.Query("instructions"), func(rows *sql.Rows) error {
		var paused sql.NullString
		err := rows.Scan(&told.Stop, &paused)
		if paused.Valid {
			told.Paused = append(told.Paused, paused.String)
		}
		return err
	}, id)
	return told, translate(err)
}

// Workers implements admin.Workers.
func (db *DB) Workers(ctx context.Context) ([]admin.Worker, error) {
	return query(ctx, db, db.admin.Query("workers"), func(rows *sql.Rows, w *admin.Worker) error {
		var text []byte
		if err := rows.Scan(&text, moment{&w.StartedAt}, moment{&w.SeenAt}, &w.AgeSeconds, maybe{&w.StopRequestedAt}); err != nil {
			return err
		}
		w.AgeSeconds = sqlcore.Age(w.AgeSeconds)
		return json.Unmarshal(text, &w.Report)
	})
}

// PausedTransports implements admin.Workers.
func (db *DB) PausedTransports(ctx context.Context) ([]admin.Pause, error) {
	return query(ctx, db, db.admin.Query("paused"), func(rows *sql.Rows, p *admin.Pause) error {
		return rows.Scan(&p.Transport, moment{&p.Since}, &p.Actor, &p.Reason)
	})
}
