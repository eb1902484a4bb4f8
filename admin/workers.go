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
	// PausedTransports lists the transports that are paused, by name.
	PausedTransports(ctx context.Context) ([]Pause, error)
	// PauseTransport pauses the workers of a transport, also those that start later, until it
	// is resumed: they finish what is in flight, and receive no messages. It reports false,
	// and changes nothing, if the transport is paused already.
	PauseTransport(ctx context.Context, transport, reason string) (bool, error)
	// ResumeTransport ends a pause. It reports false if the transport is not paused.
	ResumeTransport(ctx context.Context, transport string) (bool, error)
}

// A Worker is the last report of a process with workers.
type Worker struct {
	StartedAt       time.Time  `json:"started_at"`
	SeenAt          time.Time  `json:"seen_at"`
	AgeSeconds      float64    `json:"age_seconds"`                 // of the report, by the clock of the database
	StopRequestedAt *time.Time `json:"stop_requested_at,omitempty"` // by an operator
	worker.Report
}

// Ago returns how long ago a time of the database was, as Relay.Ago does.
func (w Worker) Ago(at time.Time) time.Duration { return ago(at, w.SeenAt, w.AgeSeconds) }
