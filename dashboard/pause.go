package dashboard

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/suggest"
)

// A consumedTransport is a transport on the page of processes, with its pause or nil.
type consumedTransport struct {
	Name      string
	Processes int
	*admin.Pause
}

// consumedTransports are the transports of processes with workers, and the paused ones.
func consumedTransports(workers []admin.Worker, paused []admin.Pause) (all []consumedTransport) {
	of := func(name string) *consumedTransport {
		i := slices.IndexFunc(all, func(t consumedTransport) bool { return t.Name == name })
		if i < 0 {
			i, all = len(all), append(all, consumedTransport{Name: name})
		}
		return &all[i]
	}
	for _, w := range workers {
		for _, name := range w.Transports {
			of(name).Processes++
		}
	}
	for i, p := range paused {
		of(p.Transport).Pause = &paused[i]
	}
	slices.SortFunc(all, func(a, b consumedTransport) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// readPaused returns the paused transports, none of a database without reports.
func (d *Dashboard) readPaused(ctx context.Context) ([]admin.Pause, error) {
	if db, ok := d.db.(admin.Workers); ok {
		return db.PausedTransports(ctx)
	}
	return []admin.Pause{}, nil
}

// pauseReason words a pause.
func pauseReason(p admin.Pause, now time.Time) string {
	text := p.Transport + ": paused since " + p.Since.UTC().Format("2006-01-02 15:04 MST") + " (" + duration(now.Sub(p.Since)) + ") by " + p.Actor
	if p.Reason != "" {
		text += ": " + p.Reason
	}
	return text
}

// pause pauses the transport of a form, and reports whether it was not paused before.
func (d *Dashboard) pause(r *request) (bool, error) {
	db, transport, err := d.pausable(r)
	if err != nil {
		return false, err
	}
	known, err := d.knownTransports(r.Context())
	if err != nil {
		return false, err
	}
	if !slices.Contains(known, transport) {
		return false, &Error{http.StatusNotFound, "no worker or relay of this transport has reported within the last minute", suggest.Hint(transport, known, "transports")}
	}
	changed, err := db.PauseTransport(admin.WithAction(r.Context(), r.action(nil)), transport, r.PostForm.Get("reason"))
	if changed {
		d.log.LogAttrs(r.Context(), slog.LevelInfo, "a transport was paused", slog.String("transport", transport), slog.String("by", r.who.Name))
	}
	return changed, err
}

// knownTransports are the transports of workers and relays that report, and the paused ones.
func (d *Dashboard) knownTransports(ctx context.Context) (names []string, err error) {
	v, err := d.readWorkers(ctx)
	if err != nil {
		return nil, err
	}
	relays, err := d.db.Relays(ctx)
	for _, t := range v.Transports {
		names = append(names, t.Name)
	}
	for _, r := range relays {
		names = append(names, r.Transport)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// resume ends the pause of the transport of a form.
func (d *Dashboard) resume(r *request) error {
	db, transport, err := d.pausable(r)
	if err != nil {
		return err
	}
	changed, err := db.ResumeTransport(admin.WithAction(r.Context(), r.action(nil)), transport)
	if err == nil && !changed {
		err = &Error{http.StatusNotFound, "this transport is not paused", "it was resumed, or never paused: the page of workers shows it"}
	}
	if err == nil {
		d.log.LogAttrs(r.Context(), slog.LevelInfo, "a transport was resumed", slog.String("transport", transport), slog.String("by", r.who.Name))
	}
	return err
}

// pausable returns the transport of a form, and the database with its pauses.
func (d *Dashboard) pausable(r *request) (admin.Workers, string, error) {
	db, ok := d.db.(admin.Workers)
	if !ok {
		return nil, "", &Error{http.StatusNotFound, "this database has no reports of workers", ""}
	}
	transport := r.PostForm.Get("transport")
	if transport == "" {
		return nil, "", bad("transport is missing", "the name of one in the list")
	}
	return db, transport, nil
}

func (d *Dashboard) pauseTransport(r *request) error {
	if _, err := d.pause(r); err != nil {
		return err
	}
	return d.redirect(r, "/workers")
}

func (d *Dashboard) resumeTransport(r *request) error {
	if err := d.resume(r); err != nil {
		return err
	}
	return d.redirect(r, "/workers")
}

func (d *Dashboard) apiPaused(r *request) error {
	paused, err := d.readPaused(r.Context())
	if err != nil {
		return err
	}
	return answer(r, paused, false, nil)
}

func (d *Dashboard) apiPause(r *request) error {
	changed, err := d.pause(r)
	if err == nil {
		writeJSON(r.w, http.StatusOK, map[string]bool{"changed": changed})
	}
	return err
}

func (d *Dashboard) apiResume(r *request) error {
	err := d.resume(r)
	if err == nil {
		writeJSON(r.w, http.StatusOK, map[string]bool{"changed": true})
	}
	return err
}
