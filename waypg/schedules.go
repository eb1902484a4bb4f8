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
	found, err = query(ctx, db, scheduleSQL, "list", func(rows pgx.Rows, s *admin.Schedule) error {
		err := rows.Scan(&now, &s.Name, &s.Spec, &s.Missed, &s.DoneUntil, &s.LastTick, &s.NextTick, &s.RequestedAt)
		toUTC(&s.DoneUntil, s.LastTick, &s.NextTick, s.RequestedAt)
		return err
	})
	if len(found) == 1 && found[0].Name == "" { // the time alone
		found = []admin.Schedule{}
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
	p, err := s.resolveInTx(ctx, asking(tx))
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
		return p.schedule.Query("remove"), []any{old.Name, old.Spec, old.DoneUntil, old.RequestedAt}
	}
	args = []any{replacement.Name, replacement.Spec, replacement.Missed, replacement.DoneUntil, replacement.LastTick, replacement.NextTick, replacement.RequestedAt}
	if old.Name == "" {
		return p.schedule.Query("add"), args
	}
	return p.schedule.Query("replace"), append(args, db.idleOf(u), old.Spec, old.DoneUntil, old.RequestedAt)
}

// Requested implements sqlcore.OperatorTx.
func (o operatorTx) Requested(ctx context.Context, schedule string) (pending *time.Time, now time.Time, err error) {
	err = o.tx.QueryRow(ctx, o.at.schedule.Query("requested"), schedule).Scan(&pending, &now)
	return pending, now, err
}

// Request implements sqlcore.OperatorTx.
func (o operatorTx) Request(ctx context.Context, schedule string, at time.Time) error {
	_, err := o.tx.Exec(ctx, o.at.schedule.Query("request"), schedule, at)
	return err
}
