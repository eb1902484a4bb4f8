package dashboard

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill/admin"
)

// workersView is the data of the page of processes.
type workersView struct {
	Workers    []admin.Worker
	Transports []consumedTransport
	Known      bool // the database keeps reports of workers
	Relays     []admin.Relay
	Reports    bool // the relays of the database report
}

func (d *Dashboard) workersPage(r *request) error {
	v, err := d.readWorkers(r.Context())
	if err != nil {
		return err
	}
	if v.Relays, err = d.db.Relays(r.Context()); err != nil {
		return err
	}
	v.Reports = d.keepsReports()
	return d.livePage(r, "workers", "Workers", v)
}

func (d *Dashboard) readWorkers(ctx context.Context) (v workersView, err error) {
	db, ok := d.db.(admin.Workers)
	if !ok {
		return v, nil
	}
	v.Known = true
	if v.Workers, err = db.Workers(ctx); err != nil {
		return v, err
	}
	paused, err := db.PausedTransports(ctx)
	v.Transports = consumedTransports(v.Workers, paused)
	return v, err
}

// stopWorker asks a process to stop. Its page has asked the user.
func (d *Dashboard) stopWorker(r *request) error {
	if err := d.stop(r); err != nil {
		return err
	}
	return d.redirect(r, "/workers")
}

func (d *Dashboard) stop(r *request) error {
	db, ok := d.db.(admin.Workers)
	if !ok {
		return &Error{http.StatusNotFound, "this database has no reports of workers", ""}
	}
	id := r.PathValue("id")
	if _, err := uuid.FromString(id); err != nil {
		return &Error{http.StatusNotFound, "there is no such process", "the list has the ids"}
	}
	n, err := db.StopWorkers(admin.WithAction(r.Context(), r.action(nil)), id)
	if err == nil && n == 0 {
		err = &Error{http.StatusNotFound, "this process does not report any more", "it has ended"}
	}
	if err != nil {
		return err
	}
	d.log.LogAttrs(r.Context(), slog.LevelInfo, "a worker was asked to stop", slog.String("worker", id), slog.String("by", r.who.Name))
	return nil
}

func (d *Dashboard) apiWorkers(r *request) error {
	v, err := d.readWorkers(r.Context())
	if err != nil {
		return err
	}
	return answer(r, v.Workers, false, nil)
}

func (d *Dashboard) apiStop(r *request) error {
	if err := d.stop(r); err != nil {
		return err
	}
	writeJSON(r.w, http.StatusOK, map[string]int{"requested": 1})
	return nil
}
