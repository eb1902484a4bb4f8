package dashboard_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/waysqlite"
)

func TestSchedulesAreListedWithTheirState(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	if _, text := f.get("/schedules"); !strings.Contains(text, "No process has run a schedule yet.") {
		t.Errorf("without schedules the page is\n%s", text)
	}
	db := f.db.(*waysqlite.DB)
	now := time.Now().UTC()
	late := admin.Schedule{Name: "late" + hostile, Spec: "every 1m0s", Missed: "skip", DoneUntil: now.Add(-3 * time.Minute), LastTick: new(now.Add(-3 * time.Minute)), NextTick: now.Add(-2 * time.Minute)}
	waiting := admin.Schedule{Name: "waiting", Spec: "30 2 * * * Europe/Berlin", Missed: "latest", DoneUntil: now, NextTick: now.Add(time.Hour)}
	for _, row := range []admin.Schedule{late, waiting} {
		err := db.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			_, err := db.ReplaceSchedule(ctx, tx, admin.Schedule{}, row)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, text := f.get("/schedules")
	for _, want := range []string{"overdue for 2m", "every 1m0s", "30 2 * * * Europe/Berlin", "none yet", `aria-current="page">Schedules`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "<script") {
		t.Errorf("the name of a schedule is no text:\n%s", text)
	}
	_, text = f.do("GET", "/api/v1/schedules", nil)
	for _, want := range []string{`"name":"waiting","spec":"30 2 * * * Europe/Berlin","missed":"latest","last_tick":null`, `"overdue_seconds":0}`, `"overdue_seconds":12`} {
		if !strings.Contains(text, want) {
			t.Errorf("the API has no %s in %s", want, text)
		}
	}
	if _, text = f.do("GET", "/api/v1/schedules?format=csv", nil); !strings.HasPrefix(text, "name,spec,missed,last_tick,next_tick,overdue_seconds\n") {
		t.Errorf("the CSV begins with %.100s", text)
	}
}
