package dashboard

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/suggest"
)

// schedulesView is the data of the page of schedules.
type schedulesView struct {
	Schedules []scheduleRow
	Known     bool // the database keeps schedules
}

// A scheduleRow is one schedule in the list. Overdue is zero unless its next tick or
// a request is late.
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

// triggerSchedule requests a message. Its page has asked the user.
func (d *Dashboard) triggerSchedule(r *request) error {
	if _, _, err := d.trigger(r); err != nil {
		return err
	}
	return d.redirect(r, "/schedules")
}

// trigger requests one message of the schedule that a form names. It returns the time of the
// request, and whether there was none before.
func (d *Dashboard) trigger(r *request) (requested time.Time, added bool, err error) {
	name := r.PostForm.Get("name")
	if name == "" {
		return requested, false, bad("name is missing", "the name of a schedule")
	}
	v, err := d.readSchedules(r.Context())
	if err != nil {
		return requested, false, err
	}
	known, found := []string{}, false
	for _, one := range v.Schedules {
		known, found = append(known, one.Name), found || one.Name == name
	}
	db, ok := d.db.(admin.Schedules)
	if !ok || !found {
		return requested, false, &Error{http.StatusNotFound, "no process has run a schedule of this name", suggest.Hint(name, known, "schedules")}
	}
	requested, added, err = db.TriggerSchedule(admin.WithAction(r.Context(), r.action(nil)), name)
	if err == nil && added {
		d.log.LogAttrs(r.Context(), slog.LevelInfo, "a schedule was triggered", slog.String("schedule", name), slog.String("by", r.who.Name))
	}
	return requested, added, err
}

func (d *Dashboard) apiTrigger(r *request) error {
	requested, added, err := d.trigger(r)
	if err != nil {
		return err
	}
	writeJSON(r.w, http.StatusOK, struct {
		Requested   bool      `json:"requested"` // false for a request that was pending
		RequestedAt time.Time `json:"requested_at"`
	}{added, requested})
	return nil
}
