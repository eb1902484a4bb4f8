package waysqlite

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/worker"
)

// ReportWorkers implements worker.Registry.
func (db *DB) ReportWorkers(ctx context.Context, r worker.Report) (told worker.Instructions, err error) {
	text, err := json.Marshal(r)
	if err != nil {
		return told, err
	}
	err = db.write(ctx, func(tx *txn) error {
		if r.Ended {
			_, err := tx.exec(ctx, db.adminSQL.Query("forget_workers"), r.ID)
			return err
		}
		var paused []byte
		if err := tx.QueryRowContext(ctx, db.adminSQL.Query("report_workers"), r.ID, string(text)).Scan(&told.Stop, &paused); err != nil {
			return err
		}
		return json.Unmarshal(paused, &told.Paused)
	})
	return told, translate(err)
}

// Workers implements admin.Workers.
func (db *DB) Workers(ctx context.Context) ([]admin.Worker, error) {
	return query(ctx, db, db.adminSQL.Query("workers"), func(rows *sql.Rows, w *admin.Worker) error {
		var text []byte
		var started, seen int64
		var requested sql.NullInt64
		if err := rows.Scan(&text, &started, &seen, &w.AgeSeconds, &requested); err != nil {
			return err
		}
		w.StartedAt, w.SeenAt, w.StopRequestedAt = micros(started), micros(seen), microsOrNil(requested)
		w.AgeSeconds = sqlcore.Age(w.AgeSeconds)
		return json.Unmarshal(text, &w.Report)
	})
}

// PausedTransports implements admin.Workers.
func (db *DB) PausedTransports(ctx context.Context) ([]admin.Pause, error) {
	return query(ctx, db, db.adminSQL.Query("paused"), func(rows *sql.Rows, p *admin.Pause) error {
		var since int64
		err := rows.Scan(&p.Transport, &since, &p.Actor, &p.Reason)
		p.Since = micros(since)
		return err
	})
}
