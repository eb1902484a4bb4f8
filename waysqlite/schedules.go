package waysqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// Schedules implements admin.Schedules and schedule.Store.
func (db *DB) Schedules(ctx context.Context) (found []admin.Schedule, now time.Time, err error) {
	rows, err := query(ctx, db, db.scheduleSQL.Query("list"), func(rows *sql.Rows, s *admin.Schedule) error {
		var name, spec, missed sql.NullString
		var clock int64
		var done, last, next, requested sql.NullInt64
		err := rows.Scan(&clock, &name, &spec, &missed, &done, &last, &next, &requested)
		*s = admin.Schedule{
			Name: name.String, Spec: spec.String, Missed: missed.String, DoneUntil: micros(done.Int64),
			LastTick: microsOrNil(last), NextTick: micros(next.Int64), RequestedAt: microsOrNil(requested),
		}
		now = micros(clock)
		return err
	})
	if len(rows) == 1 && rows[0].Name == "" { // the time alone
		rows = []admin.Schedule{}
	}
	return rows, now, err
}

// ReplaceSchedule implements schedule.Store.
func (db *DB) ReplaceSchedule(ctx context.Context, tx *sql.Tx, old, replacement admin.Schedule) (bool, error) {
	if _, err := db.unitOf(tx); err != nil {
		return false, err
	}
	statement := "replace"
	args := []any{replacement.Spec, replacement.Missed, replacement.DoneUntil.UnixMicro(), unixMicro(replacement.LastTick), replacement.NextTick.UnixMicro(), unixMicro(replacement.RequestedAt)}
	was := []any{old.Name, old.Spec, old.DoneUntil.UnixMicro(), unixMicro(old.RequestedAt)}
	switch {
	case replacement.Name == "":
		statement, args = "remove", was
	case old.Name == "":
		statement, args = "add", append([]any{replacement.Name}, args...)
	default:
		args = append(args, was...)
	}
	result, err := tx.ExecContext(ctx, db.scheduleSQL.Query(statement), args...)
	if err != nil {
		return false, translate(err)
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// unixMicro is NULL for nil.
func unixMicro(t *time.Time) any {
	if t == nil {
		return nil
	}
	return t.UnixMicro()
}

// Requested implements sqlcore.OperatorTx.
func (o operatorTx) Requested(ctx context.Context, schedule string) (pending *time.Time, now time.Time, err error) {
	var since sql.NullInt64
	var clock int64
	err = o.QueryRowContext(ctx, o.db.scheduleSQL.Query("requested"), schedule).Scan(&since, &clock)
	return microsOrNil(since), micros(clock), err
}

// Request implements sqlcore.OperatorTx.
func (o operatorTx) Request(ctx context.Context, schedule string, at time.Time) error {
	_, err := o.exec(ctx, o.db.scheduleSQL.Query("request"), at.UnixMicro(), schedule)
	return err
}
