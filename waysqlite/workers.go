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
	if err := db.checkSchema(ctx); err != nil {
		return told, err
	}
	text, err := sqlcore.WorkerReport(r)
	if err != nil {
		return told, err
	}
	err = db.write(ctx, func(tx *txn) error {
		if r.Ended {
			_, err := tx.exec(ctx, db.adminSQL.Query("forget_workers"), r.ID)
			return err
		}
		var paused []byte
		if err := tx.QueryRowContext(ctx, db.adminSQL.Query("report_workers"), r.ID, text).Scan(&told.Stop, &paused); err != nil {
			return err
		}
		return json.Unmarshal(paused, &told.Paused)
	})
	return told, translate(err)
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

// PausedTransports implements admin.Workers.
func (db *DB) PausedTransports(ctx context.Context) ([]admin.Pause, error) {
	return query(ctx, db, db.adminSQL.Query("paused"), func(rows *sql.Rows, p *admin.Pause) error {
		var since int64
		err := rows.Scan(&p.Transport, &since, &p.Actor, &p.Reason)
		p.Since = micros(since)
		return err
	})
}

// PauseTransport implements admin.Workers.
func (db *DB) PauseTransport(ctx context.Context, transport, reason string) (bool, error) {
	p, err := admin.NewPause(ctx, transport, reason)
	if err != nil {
		return false, err
	}
	filter := map[string]string{"transport": transport, "reason": reason}
	n, err := sqlcore.Audited(ctx, db.change, "workers pause", filter, func(ctx context.Context, tx sqlcore.OperatorTx) (int, error) {
		return tx.Exec(ctx, "pause", p.Transport, p.Actor, p.Reason)
	})
	return n > 0, err
}

// ResumeTransport implements admin.Workers.
func (db *DB) ResumeTransport(ctx context.Context, transport string) (bool, error) {
	filter := map[string]string{"transport": transport}
	n, err := sqlcore.Audited(ctx, db.change, "workers resume", filter, func(ctx context.Context, tx sqlcore.OperatorTx) (int, error) {
		return tx.Exec(ctx, "resume", transport)
	})
	return n > 0, err
}
