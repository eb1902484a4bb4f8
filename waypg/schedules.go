package waypg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
)

func scheduleSQL(p *catalog) sqlfile.Set { return p.schedule }

// Schedules implements admin.Schedules and schedule.Store.
func (db *DB) Schedules(ctx context.Context) (found []admin.Schedule, now time.Time, err error) {
	type row struct {
		name, spec, missed                   *string
		doneUntil, last, nextTick, requested *time.Time
	}
	rows, err := query(ctx, db, scheduleSQL, "list", func(rows pgx.Rows, r *row) error {
		return rows.Scan(&now, &r.name, &r.spec, &r.missed, &r.doneUntil, &r.last, &r.nextTick, &r.requested)
	})
	found = []admin.Schedule{}
	for _, r := range rows {
		if r.name == nil {
			continue
		}
		for _, t := range []*time.Time{r.last, r.requested} {
			if t != nil {
				*t = t.UTC()
			}
		}
		found = append(found, admin.Schedule{
			Name: *r.name, Spec: *r.spec, Missed: *r.missed, DoneUntil: r.doneUntil.UTC(),
			LastTick: r.last, NextTick: r.nextTick.UTC(), RequestedAt: r.requested,
		})
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

// TriggerSchedule implements admin.Schedules.
func (db *DB) TriggerSchedule(ctx context.Context, name string) (requested time.Time, added bool, err error) {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return requested, false, err
	}
	err = translate(db.inTx(ctx, func(tx pgx.Tx) error {
		var pending *time.Time
		err := tx.QueryRow(ctx, p.schedule.Query("requested"), name).Scan(&pending, &requested)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("schedule %q: %w", name, waybill.ErrNotFound)
		case err != nil:
			return err
		case pending != nil:
			requested = *pending
			return nil
		}
		if _, err := tx.Exec(ctx, p.schedule.Query("request"), name, requested); err != nil {
			return err
		}
		added = true
		return sqlcore.Audit(ctx, operatorTx{db, p, tx}, "schedules trigger", map[string]string{"name": name}, 1)
	}))
	return requested.UTC(), added && err == nil, err
}
