package dashboard

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// schedulesView is the data of the page of schedules.
type schedulesView struct {
	Schedules []scheduleRow
	Known     bool // the database keeps schedules
}

// A scheduleRow is one schedule in the list. Overdue is zero unless its next tick is late.
type scheduleRow struct {
	admin.Schedule
	Overdue float64 `json:"overdue_seconds"`
}

func (d *Dashboard) schedulesPage(r *request) error {
	v, err := d.readSchedules(r.Context())
	if err != nil {
		return err
	}
	return d.livePage(r, "schedules", "Schedules", v)
}

func (d *Dashboard) readSchedules(ctx context.Context) (v schedulesView, err error) {
	db, ok := d.db.(admin.Schedules)
	if !ok {
		return v, nil
	}
	rows, now, err := db.Schedules(ctx)
	v.Known = true
	for _, row := range rows {
		v.Schedules = append(v.Schedules, scheduleRow{row, row.Overdue(now).Round(time.Second).Seconds()})
	}
	return v, err
}

func (d *Dashboard) apiSchedules(r *request) error {
	v, err := d.readSchedules(r.Context())
	if err != nil {
		return err
	}
	return answer(r, v.Schedules, false, nil)
}
