package waysqlite_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/waysqlite"
)

// A request and its audit are one transaction.
func TestRequestWithoutItsAuditIsNone(t *testing.T) {
	t.Parallel()
	db := open(t, waysqlite.Config{})
	now := time.Now().UTC().Truncate(time.Microsecond)
	err := db.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := db.ReplaceSchedule(ctx, tx, admin.Schedule{}, admin.Schedule{Name: "nightly", DoneUntil: now, NextTick: now.Add(time.Hour)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.SQL().ExecContext(t.Context(), `CREATE TRIGGER full BEFORE INSERT ON waybill_audit BEGIN SELECT RAISE(ABORT, 'no room'); END`); err != nil {
		t.Fatal(err)
	}
	if _, added, err := db.TriggerSchedule(t.Context(), "nightly"); added || err == nil {
		t.Errorf("TriggerSchedule without an audit = %v, %v", added, err)
	}
	if rows, _, err := db.Schedules(t.Context()); err != nil || len(rows) != 1 || rows[0].RequestedAt != nil {
		t.Errorf("the rows are %+v, %v", rows, err)
	}
}
