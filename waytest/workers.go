package waytest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/uuid/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/worker"
)

// workersAreListedAndStopped has three processes report, of which one ends, and one is told
// to stop.
func workersAreListedAndStopped[TX any](t *testing.T, s *fixture[TX]) {
	db, ok := s.Store.(interface {
		admin.Workers
		worker.Registry
	})
	if !ok {
		t.Skip("the store keeps no reports of workers")
	}
	reports := make([]worker.Report, 3)
	for i := range reports {
		reports[i] = worker.Report{
			ID: uuid.Must(uuid.NewV4()).String(), Name: "billing", Host: "host", PID: 40 + i, State: worker.StateRunning, Transports: []string{"orders", "mail"}, Paused: []string{"mail"},
			Concurrency: 20, Busy: 1, Handled: 1 << 40, Failed: 3, HeapBytes: 1 << 33,
			Running: []worker.RunningMessage{{Transport: "orders", Name: "order.пл\x00aced\xff", ID: waybill.MessageID{1}, Handler: "mail", Seconds: 1.5}},
		}
		reportWorker(t, db, reports[i], false)
	}
	reports[0].Handled, reports[2].Ended = 7, true
	reportWorker(t, db, reports[0], false)
	reportWorker(t, db, reports[2], false)
	listed := listWorkers(t, db)
	wanted := []worker.Report{reports[0], reports[1]}
	for i := range wanted {
		wanted[i].Running = []worker.RunningMessage{{Transport: "orders", Name: "order.пл\x00aced\uFFFD", ID: waybill.MessageID{1}, Handler: "mail", Seconds: 1.5}}
	}
	for i, w := range listed {
		if diff := cmp.Diff(wanted[i], w.Report); diff != "" || w.StopRequestedAt != nil || notNow(w.SeenAt) || notNow(w.StartedAt) || w.SeenAt.Before(w.StartedAt) {
			t.Errorf("worker %d (-want +got):\n%s%+v", i, diff, w)
		}
	}
	reportAges(t, db)
	if n, err := db.StopWorkers(t.Context(), reports[1].ID, reports[2].ID); n != 1 || err != nil {
		t.Errorf("StopWorkers of one that runs and one that has ended = %d, %v, want 1", n, err)
	}
	if n, err := db.StopWorkers(t.Context(), "billing"); n != 0 || err == nil {
		t.Errorf("StopWorkers of a name = %d, %v, want an error", n, err)
	}
	reportWorker(t, db, reports[0], false)
	reportWorker(t, db, reports[1], true)
	later := reports[1]
	later.ID, later.PID = uuid.Must(uuid.NewV4()).String(), 43
	reportWorker(t, db, later, false)
	for i, w := range listWorkers(t, db) {
		if requested := w.StopRequestedAt != nil; requested != (i == 1) || requested && notNow(*w.StopRequestedAt) {
			t.Errorf("worker %d was asked to stop at %v", i, w.StopRequestedAt)
		}
	}
	if letters, ok := s.Store.(admin.DeadLetters); ok {
		entries, err := letters.Audit(t.Context(), 0, 0)
		try(t, "Audit", err)
		filter, _ := json.Marshal(map[string][]string{"ids": {reports[1].ID, reports[2].ID}})
		want := fmt.Sprintf("workers stop 1 %s", filter)
		if got := fmt.Sprint(entries[0].Action, " ", entries[0].Messages, " ", strings.ReplaceAll(string(entries[0].Filter), " ", "")); got != want || len(entries) != 1 {
			t.Errorf("the audit has %s and %d entries, want %s alone", got, len(entries), want)
		}
	}
}

func reportAges(t *testing.T, db admin.Workers) {
	t.Helper()
	var w admin.Worker
	await(t, "a report ages", func() bool {
		w = listWorkers(t, db)[0]
		return w.AgeSeconds > 0
	})
	if age := w.Ago(w.SeenAt); age > time.Minute || w.Ago(w.StartedAt) < age {
		t.Errorf("the report is %v old, of a worker that began %v ago", age, w.Ago(w.StartedAt))
	}
}

// notNow reports whether at is no time of a running test.
func notNow(at time.Time) bool { d := time.Since(at); return d > time.Minute || d < -time.Minute }

func reportWorker(t testing.TB, db worker.Registry, r worker.Report, want bool) {
	t.Helper()
	if told, err := db.ReportWorkers(t.Context(), r); told.Stop != want || len(told.Paused) > 0 || err != nil {
		t.Fatalf("ReportWorkers = %+v, %v, want %v", told, err, want)
	}
}

func listWorkers(t testing.TB, db admin.Workers) []admin.Worker {
	t.Helper()
	found, err := db.Workers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(found, func(a, b admin.Worker) int { return a.PID - b.PID }) // they began in one millisecond
	return found
}
