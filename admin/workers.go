package admin

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/worker"
)

// Workers is an operator's view of the processes that handle messages. Its methods may be
// called concurrently.
type Workers interface {
	// Workers lists the processes with workers that have reported within the last minute,
	// in the order in which they began.
	Workers(ctx context.Context) ([]Worker, error)
	// StopWorkers asks processes, by their ids, to stop, and returns how many of them are
	// in the list. Each finishes what is in flight, a few seconds after that, and ends; one
	// that starts later is not stopped.
	StopWorkers(ctx context.Context, ids ...string) (int, error)
}

// A Worker is the last report of a process with workers.
type Worker struct {
	StartedAt       time.Time  `json:"started_at"`
	SeenAt          time.Time  `json:"seen_at"`
	StopRequestedAt *time.Time `json:"stop_requested_at,omitempty"` // by an operator
	worker.Report
}
