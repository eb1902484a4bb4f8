package waypg

import (
	"context"
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlfile"
)

func scheduleSQL(p *catalog) sqlfile.Set { return p.schedule }

// Schedules implements admin.Schedules and schedule.Store.
func (db *DB) Schedules(ctx context.Context) (found []admin.Schedule, now time.Time, err error) {
	type row struct {
		name, spec, missed        *string
		doneUntil, last, nextTick *time.Time
	}
	rows, err := query(ctx, db, scheduleSQL, "list", func(rows pgx.Rows, r *row) error {
		return rows.Scan(&now, &r.name, &r.spec, &r.missed, &r.doneUntil, &r.last, &r.nextTick)
	})
	found = []admin.Schedule{}
	for _, r := range rows {
		if r.name == nil {
			continue
		}
		if r.last != nil {
			*r.last = r.last.UTC()
		}
		found = append(found, admin.Schedule{Name: *r.name, Spec: *r.spec, Missed: *r.missed, LastTick: r.last, NextTick: r.nextTick.UTC(), DoneUntil: r.doneUntil.UTC()})
	}
	return found, now.UTC(), err
}

// ReplaceSchedule implements schedule.Store.
func (db *DB) ReplaceSchedule(ctx context.Context, tx pgx.Tx, old, replacement admin.Schedule) (bool, error) {
	p, err := db.resolveInTx(ctx, tx.QueryRow)
	if err != nil {
		return false, err
	}
	u, err := db.unitOf(tx)
	if err != nil {
		return false, err
	}
	text, args := db.replaceSchedule(p, u, old, replacement)
	tag, err := tx.Exec(ctx, text, args...)
	return tag.RowsAffected() == 1, translate(err)
}

// ReplaceSchedule implements schedule.Store.
func (s *SQLDB) ReplaceSchedule(ctx context.Context, tx *sql.Tx, old, replacement admin.Schedule) (bool, error) {
	p, err := s.resolveInTx(ctx, func(ctx context.Context, query string, args ...any) pgx.Row {
		return tx.QueryRowContext(ctx, query, args...)
	})
	if err != nil {
		return false, err
	}
	u, err := s.unitOf(tx)
	if err != nil {
		return false, err
	}
	text, args := s.replaceSchedule(p, u, old, replacement)
	result, err := tx.ExecContext(ctx, text, args...)
	if err != nil {
		return false, translate(err)
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// replaceSchedule returns the statement of ReplaceSchedule, in a unit of work or, for nil, in
// another transaction.
func (db *DB) replaceSchedule(p *catalog, u *unit, old, replacement admin.Schedule) (text string, args []any) {
	if replacement.Name == "" {
		return p.schedule.Query("remove"), []any{old.Name, old.Spec, old.DoneUntil}
	}
	args = []any{replacement.Name, replacement.Spec, replacement.Missed, replacement.DoneUntil, replacement.LastTick, replacement.NextTick}
	if old.Name == "" {
		return p.schedule.Query("add"), args
	}
	return p.schedule.Query("replace"), append(args, db.idleOf(u), old.Spec, old.DoneUntil)
}
