package admin

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
)

// Retries is an operator's view of the retry queues of workers, beside a Database. Its
// methods may be called concurrently, also while workers run.
type Retries interface {
	// Retries lists the messages of retry queues, in the order of their arrival.
	Retries(ctx context.Context, q RetriesQuery) ([]RetryingMessage, error)
	// ReleaseRetries makes the parked messages of a transport due, of one key or of all if
	// it is empty, and returns how many. The messages of their keys follow them.
	ReleaseRetries(ctx context.Context, transport, key string) (int, error)
	// SkipParked moves the parked message of a key, or of each key if it is empty, to the dead
	// letters of a failure transport, with its attempts, and returns how many; empty means
	// "failed". The later messages of their keys become due, in order. It is one transaction.
	SkipParked(ctx context.Context, transport, key, failureTransport string) (int, error)
	// FailedAttempts lists the failed attempts of workers at a message, in order. They are
	// kept until the message succeeds.
	FailedAttempts(ctx context.Context, transport string, id waybill.MessageID) ([]FailedAttempt, error)
	// WorkerStats counts by transport of workers.
	WorkerStats(ctx context.Context) ([]WorkerStats, error)
}

// WorkerStats counts the failed messages of one transport's workers.
type WorkerStats struct {
	Transport string `json:"transport"`
	Retrying  int    `json:"retrying"` // in the retry queue, the parked ones included
	Parked    int    `json:"parked"`   // of them, waiting for a release; not the later ones of their keys
	Failed    int    `json:"failed"`   // dead letters
}

// RetriesQuery selects messages of retry queues; zero fields select all.
type RetriesQuery struct {
	Transport, Key string
	After          int64 // only rows with a greater id
	Limit          int
}

// RetryingMessage is a message of a retry queue: one that failed, or a later one of its key.
type RetryingMessage struct {
	Row       int64             `json:"row"`
	Transport string            `json:"transport"`
	Name      string            `json:"name"`
	Key       string            `json:"key"`
	ID        waybill.MessageID `json:"id"`
	CreatedAt time.Time         `json:"created_at"`
	Failures  int               `json:"failures"`         // since it came to the queue, or was replayed
	Crashes   int               `json:"crashes"`          // how often its worker ended in a handler
	DueAt     *time.Time        `json:"due_at,omitempty"` // of a retry with a delay
	Parked    bool              `json:"parked"`           // it and its key wait for ReleaseRetries or SkipParked
	InFlight  bool              `json:"in_flight"`        // delivered to a worker and not settled
	Bytes     int               `json:"bytes"`
	LastError string            `json:"last_error"` // empty for a message that has not failed
}

// FailedAttempt is the record of one failed attempt to handle a message.
type FailedAttempt struct {
	Attempt     int       `json:"attempt"` // from 1, counted on after a replay
	At          time.Time `json:"at"`
	Worker      string    `json:"worker"`  // host and process id
	Handler     string    `json:"handler"` // empty if none ran
	ErrorType   string    `json:"error_type"`
	Error       string    `json:"error"`
	Stack       string    `json:"stack,omitempty"` // of a panic
	Fingerprint string    `json:"fingerprint"`     // equal for errors that differ in numbers, ids and times only
}
