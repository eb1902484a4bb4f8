package waymysql

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// Schedules implements admin.Schedules and schedule.Store.
func (db *DB) Schedules(ctx context.Context) (found []admin.Schedule, now time.Time, err error) {
	rows, err := query(ctx, db, db.schedule.Query("list"), func(rows *sql.Rows, s *admin.Schedule) error {
		var name, spec, missed sql.NullString
		err := rows.Scan(moment{&now}, &name, &spec, &missed, moment{&s.DoneUntil}, maybe{&s.LastTick}, moment{&s.NextTick})
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
	var last any
	if replacement.LastTick != nil {
		last = stamp(*replacement.LastTick)
	}
	statement := "replace"
	args := []any{replacement.Spec, replacement.Missed, stamp(replacement.DoneUntil), last, stamp(replacement.NextTick)}
	was := []any{old.Name, old.Spec, stamp(old.DoneUntil)}
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
