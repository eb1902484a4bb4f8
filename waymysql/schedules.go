package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
)

// Schedules implements admin.Schedules and schedule.Store.
func (db *DB) Schedules(ctx context.Context) (found []admin.Schedule, now time.Time, err error) {
	rows, err := query(ctx, db, db.schedule.Query("list"), func(rows *sql.Rows, s *admin.Schedule) error {
		var name, spec, missed sql.NullString
		err := rows.Scan(moment{&now}, &name, &spec, &missed, moment{&s.DoneUntil}, maybe{&s.LastTick}, moment{&s.NextTick}, maybe{&s.RequestedAt})
		s.Name, s.Spec, s.Missed = name.String, spec.String, missed.String
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
	args := []any{replacement.Spec, replacement.Missed, stamp(replacement.DoneUntil), stampOrNull(replacement.LastTick), stamp(replacement.NextTick), stampOrNull(replacement.RequestedAt)}
	was := []any{old.Name, old.Spec, stamp(old.DoneUntil), stampOrNull(old.RequestedAt)}
	switch {
	case replacement.Name == "":
		statement, args = "remove", was
	case old.Name == "":
		statement, args = "add", append([]any{replacement.Name}, args...)
	default:
		args = append(args, was...)
	}
	result, err := tx.ExecContext(ctx, db.schedule.Query(statement), args...)
	if is(err, errDuplicate) {
		return false, nil
	}
	if err != nil {
		return false, translate(err)
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// stampOrNull is NULL for nil.
func stampOrNull(t *time.Time) any {
	if t == nil {
		return nil
	}
	return stamp(*t)
}

// TriggerSchedule implements admin.Schedules.
func (db *DB) TriggerSchedule(ctx context.Context, name string) (requested time.Time, added bool, err error) {
	if err := db.writer(ctx); err != nil {
		return requested, false, err
	}
	err = translate(db.inTx(ctx, func(tx *sql.Tx) error {
		var pending *time.Time
		err := tx.QueryRowContext(ctx, db.schedule.Query("requested"), name).Scan(maybe{&pending}, moment{&requested})
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return fmt.Errorf("schedule %q: %w", name, waybill.ErrNotFound)
		case err != nil:
			return err
		case pending != nil:
			requested = *pending
			return nil
		}
		if _, err := tx.ExecContext(ctx, db.schedule.Query("request"), stamp(requested), name); err != nil {
			return err
		}
		added = true
		return sqlcore.Audit(ctx, operatorTx{db, tx}, "schedules trigger", map[string]string{"name": name}, 1)
	}))
	return requested, added && err == nil, err
}
