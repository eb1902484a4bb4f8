package waymysql

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// Schedules implements admin.Schedules and schedule.Store.
func (db *DB) Schedules(ctx context.Context) (found []admin.Schedule, now time.Time, err error) {
	found, err = query(ctx, db, db.schedule.Query("list"), func(rows *sql.Rows, s *admin.Schedule) error {
		return rows.Scan(moment{&now}, &s.Name, &s.Spec, &s.Missed, moment{&s.DoneUntil}, maybe{&s.LastTick}, moment{&s.NextTick}, maybe{&s.RequestedAt})
	})
	if len(found) == 1 && found[0].Name == "" { // the time alone
		found = []admin.Schedule{}
	}
	return found, now, err
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

// Requested implements sqlcore.OperatorTx.
func (o operatorTx) Requested(ctx context.Context, schedule string) (pending *time.Time, now time.Time, err error) {
	err = o.tx.QueryRowContext(ctx, o.db.schedule.Query("requested"), schedule).Scan(maybe{&pending}, moment{&now})
	return pending, now, err
}

// Request implements sqlcore.OperatorTx.
func (o operatorTx) Request(ctx context.Context, schedule string, at time.Time) error {
	_, err := o.tx.ExecContext(ctx, o.db.schedule.Query("request"), stamp(at), schedule)
	return err
}
