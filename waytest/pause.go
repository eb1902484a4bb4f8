package waytest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/uuid/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/worker"
)

// A pausable is a database with pauses of transports.
type pausable struct {
	t  *testing.T
	db interface {
		admin.Workers
		worker.Registry
	}
}

func (p pausable) pause(transport, reason string, want bool) {
	p.t.Helper()
	ctx := admin.WithAction(p.t.Context(), admin.Action{Actor: "ann@host"})
	if done, err := p.db.PauseTransport(ctx, transport, reason); done != want || err != nil {
		p.t.Errorf("PauseTransport(%q) = %v, %v, want %v", transport, done, err, want)
	}
}

func (p pausable) resume(transport string, want bool) {
	p.t.Helper()
	ctx := admin.WithAction(p.t.Context(), admin.Action{Actor: "bob@host"})
	if done, err := p.db.ResumeTransport(ctx, transport); done != want || err != nil {
		p.t.Errorf("ResumeTransport(%q) = %v, %v, want %v", transport, done, err, want)
	}
}

// told checks the answers to a process that starts, reports again, and ends.
func (p pausable) told(want ...string) {
	p.t.Helper()
	report := worker.Report{ID: uuid.Must(uuid.NewV4()).String(), Name: "new", State: worker.StateRunning, Transports: []string{"orders"}}
	for range 2 {
		told, err := p.db.ReportWorkers(p.t.Context(), report)
		slices.Sort(told.Paused)
		if err != nil || told.Stop || !slices.Equal(told.Paused, want) {
			p.t.Errorf("ReportWorkers = %+v, %v, want %q paused", told, err, want)
		}
	}
	report.Ended = true
	if told, err := p.db.ReportWorkers(p.t.Context(), report); err != nil || told.Stop || len(told.Paused) > 0 {
		p.t.Errorf("ReportWorkers of a process that ends = %+v, %v, want nothing", told, err)
	}
}

// listed checks the list of paused transports, without their times.
func (p pausable) listed(want ...admin.Pause) {
	p.t.Helper()
	found, err := p.db.PausedTransports(p.t.Context())
	try(p.t, "PausedTransports", err)
	for i := range found {
		if notNow(found[i].Since) || found[i].Since.Location() != time.UTC {
			p.t.Errorf("%s is paused since %v", found[i].Transport, found[i].Since)
		}
		found[i].Since = time.Time{}
	}
	if diff := cmp.Diff(append([]admin.Pause{}, want...), found); diff != "" {
		p.t.Errorf("PausedTransports (-want +got):\n%s", diff)
	}
}

// transportsArePausedAndResumed pauses two transports, of which each report tells until they
// are resumed.
func transportsArePausedAndResumed[TX any](t *testing.T, s *fixture[TX]) {
	p := pausable{t: t}
	var ok bool
	if p.db, ok = s.Store.(interface {
		admin.Workers
		worker.Registry
	}); !ok {
		t.Skip("the store keeps no reports of workers")
	}
	p.told()
	p.listed()
	p.pause("почта", "smtp is down: “450”", true)
	p.pause("orders", "", true)
	p.pause("orders", "again", false)
	p.told("orders", "почта")
	p.listed(admin.Pause{Transport: "orders", Actor: "ann@host"}, admin.Pause{Transport: "почта", Actor: "ann@host", Reason: "smtp is down: “450”"})
	for _, bad := range [][2]string{{"", ""}, {strings.Repeat("x", 191), ""}, {"a\x00b", ""}, {"a\xff", ""}, {"a", "\x00"}, {"a", strings.Repeat("x", 1001)}} {
		if done, err := p.db.PauseTransport(t.Context(), bad[0], bad[1]); done || err == nil {
			t.Errorf("PauseTransport(%q, %.10q) = %v, %v, want an error", bad[0], bad[1], done, err)
		}
	}
	p.resume("orders", true)
	p.resume("orders", false)
	p.resume("Почта", false)
	p.told("почта")
	p.resume("почта", true)
	p.told()
	p.listed()
	letters, ok := s.Store.(admin.DeadLetters)
	if !ok {
		return
	}
	entries, err := letters.Audit(t.Context(), 0, 0)
	try(t, "Audit", err)
	var got []string
	for _, e := range slices.Backward(entries) {
		got = append(got, fmt.Sprintf("%s by %s: %d %s", e.Action, e.Actor, e.Messages, strings.ReplaceAll(string(e.Filter), " ", "")))
	}
	want := []string{
		`workers pause by ann@host: 1 {"reason":"smtpisdown:“450”","transport":"почта"}`, `workers pause by ann@host: 1 {"reason":"","transport":"orders"}`,
		`workers resume by bob@host: 1 {"transport":"orders"}`, `workers resume by bob@host: 1 {"transport":"почта"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the audit (-want +got):\n%s", diff)
	}
}
