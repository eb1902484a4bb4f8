package waycli

import (
	"context"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/worker"
)

// A reporting database has processes with workers.
type reporting struct {
	Database
	workers []admin.Worker
}

func (r reporting) Workers(context.Context) ([]admin.Worker, error) { return r.workers, nil }

// A process that hangs, or was killed, says nothing of it: a monitor that reads JSON sees it by its
// state as well. SeenAt is of the database's clock, and does not count.
func TestStateOfAWorkerIsTheOneOfNow(t *testing.T) {
	now := time.Now()
	all := []admin.Worker{{SeenAt: now.Add(-time.Minute), AgeSeconds: 1}, {SeenAt: now, AgeSeconds: 60}, {SeenAt: now, StopRequestedAt: &now}, {SeenAt: now, StopRequestedAt: &now}}
	for i := range all {
		all[i].State = worker.StateRunning
	}
	all[3].State = worker.StateDraining
	found, err := workersOf(t.Context(), reporting{workers: all})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"running", "silent", "stopping", "draining"} {
		if found[i].State != want {
			t.Errorf("state %d is %q, want %q", i, found[i].State, want)
		}
	}
	if got := workerState(found[1]); got != "silent for 1m" {
		t.Errorf("the list says %q", got)
	}
}
