// Package admin is the contract between a database and those who look after
// it: the command line and dashboards read and repair through it.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
)

// A Database is what an operator sees of one. Its methods may be called
// concurrently, also while relays and workers run. Counts are exact.
type Database interface {
	// SchemaUp creates or upgrades the tables; it may be repeated.
	SchemaUp(ctx context.Context) (SchemaStatus, error)
	// Rebucket changes the number of the outbox's buckets, while dispatchers and
	// relays run; they wait meanwhile, and a transaction that is open may have to
	// be run again. With dryRun it only counts.
	Rebucket(ctx context.Context, buckets int, dryRun bool) (Rebucketed, error)
	// SchemaStatus compares the tables with what this version wants.
	SchemaStatus(ctx context.Context) (SchemaStatus, error)
	// SchemaSQL returns what SchemaUp runs on an empty database.
	SchemaSQL() (string, error)

	// Outbox lists messages that are not published yet, oldest first.
	Outbox(ctx context.Context, q OutboxQuery) ([]OutboxMessage, error)
	// Blocked lists the routes and keys whose head is being refused, longest
	// first.
	Blocked(ctx context.Context, transport string, limit int) ([]BlockedKey, error)
	// Release lets blocked routes and keys be tried at once, and returns how many.
	// An entry of which nothing is left in the outbox is removed. The rows of a parked
	// key come back in batches, in order; nothing of it is published before the last.
	Release(ctx context.Context, q BlockedQuery) (int, error)
	// Failed lists the failure store, oldest first.
	Failed(ctx context.Context, q FailedQuery) ([]FailedMessage, error)
	// FailedContent returns what a failed message carries; it may be secret.
	FailedContent(ctx context.Context, number int64) (FailedContent, error)
	// RetryFailed dispatches skipped messages again, all or none, under the ids that
	// they have, and behind what waits of their keys. It returns how many; removed
	// ones are left out.
	RetryFailed(ctx context.Context, numbers ...int64) (int, error)
	// RemoveFailed removes body and headers of failed messages, which are never sent
	// then, and returns how many. That they were there stays on record.
	RemoveFailed(ctx context.Context, numbers ...int64) (int, error)
	// Relays lists the relays that have reported within the last minute, as far
	// as the database keeps reports.
	Relays(ctx context.Context) ([]Relay, error)
	// OutboxStats counts by transport.
	OutboxStats(ctx context.Context) ([]OutboxStats, error)
	// QueueStats counts by queue.
	QueueStats(ctx context.Context) ([]QueueStats, error)

	// InboxStats counts by handler.
	InboxStats(ctx context.Context) ([]InboxStats, error)
	// InboxLookup returns the entries of a message id or an idempotency key.
	InboxLookup(ctx context.Context, idOrKey string) ([]InboxEntry, error)
	// InboxOlder counts the entries older than age.
	InboxOlder(ctx context.Context, age time.Duration) (int, error)
	// InboxPrune removes them in batches and reports each batch's size, until
	// none is left or ctx ends.
	InboxPrune(ctx context.Context, age time.Duration, progress func(removed int)) (int, error)
}

// SchemaStatus says which tables there are and which are wanted.
type SchemaStatus struct {
	Database string   `json:"database"`
	Prefix   string   `json:"prefix"`
	Version  int      `json:"version"` // 0 means no tables
	Wanted   int      `json:"wanted"`
	Pending  []string `json:"pending,omitempty"` // migrations that are missing
	Applied  []string `json:"applied,omitempty"` // by this SchemaUp
}

// MaxRebucket is how many keyed messages may wait in an outbox whose number of
// buckets is changed: they are moved while everybody waits.
const MaxRebucket = 20_000

// Rebucketed says what Rebucket has done.
type Rebucketed struct {
	Database string        `json:"database"`
	From     int           `json:"from"`
	To       int           `json:"to"`
	Rows     int           `json:"rows"`     // keyed messages that were moved
	Stall    time.Duration `json:"stall_ns"` // how long dispatchers and relays may have waited
}

// ErrSchema is wrapped by the errors of SchemaStatus.Err.
var ErrSchema = errors.New("the schema does not fit")

// Err returns an error that says what to do, unless this version can work with
// the tables: they are as wanted, or one version ahead.
func (s SchemaStatus) Err() error {
	switch {
	case s.Version == 0:
		return fmt.Errorf("%w: %s has no waybill tables (prefix %s): run `waybill schema up`", ErrSchema, s.Database, s.Prefix)
	case s.Version < s.Wanted:
		return fmt.Errorf("%w: the tables of %s have version %d, this waybill needs %d: run `waybill schema up`", ErrSchema, s.Database, s.Version, s.Wanted)
	case s.Version > s.Wanted+1:
		return fmt.Errorf("%w: the tables of %s have version %d, this waybill knows %d: use a newer waybill", ErrSchema, s.Database, s.Version, s.Wanted)
	}
	return nil
}

// OutboxQuery selects messages; zero fields select all.
type OutboxQuery struct {
	Transport, Key, Name string
	After                int64 // only rows with a greater id
	Limit                int
}

// OutboxMessage is one message that is not published yet.
type OutboxMessage struct {
	Row       int64             `json:"row"`
	Transport string            `json:"transport"`
	Name      string            `json:"name"`
	Key       string            `json:"key"`
	ID        waybill.MessageID `json:"id"`
	CreatedAt time.Time         `json:"created_at"`
	DueAt     *time.Time        `json:"due_at,omitempty"` // set while it is delayed
	Bytes     int               `json:"bytes"`
	Blocked   bool              `json:"blocked"`
}

// BlockedQuery selects what is blocked; zero fields select all.
type BlockedQuery struct {
	Transport, Key, Route string
	Row                   int64 // of a message without key
	// SkipHead moves the refused message of each to the failure store first. A route
	// has none.
	SkipHead bool
}

// A Relay is one that runs, in the words of its last report.
type Relay struct {
	Transport string     `json:"transport"`
	Host      string     `json:"host"`
	PID       int        `json:"pid"`
	StartedAt time.Time  `json:"started_at"`
	SeenAt    time.Time  `json:"seen_at"`
	Problem   string     `json:"problem,omitempty"`  // why nothing goes out
	Degraded  string     `json:"degraded,omitempty"` // why messages go out later than they could; told while there is no problem
	Since     *time.Time `json:"since,omitempty"`    // when that began
}

// BlockedKey is a key, a single message without one, or a whole route, that a
// broker refuses.
type BlockedKey struct {
	Transport     string            `json:"transport"`
	Route         string            `json:"route,omitempty"` // the message name; then Key is empty
	Key           string            `json:"key"`
	Row           int64             `json:"row,omitempty"` // of a message without key
	HeadID        waybill.MessageID `json:"head_id"`
	HeadName      string            `json:"head_name"`
	Failures      int               `json:"failures"`
	FirstFailedAt time.Time         `json:"first_failed_at"`
	NextAttemptAt *time.Time        `json:"next_attempt_at"` // nil while it is parked
	LastError     string            `json:"last_error"`
	State         string            `json:"state"`   // Retrying or Parked
	Policy        string            `json:"policy"`  // what becomes of it in the end: see outbox.Policy
	Waiting       int               `json:"waiting"` // rows in the outbox, the head included
	Parked        int               `json:"parked"`  // of those, rows that are set aside
}

// The states of a BlockedKey and of a FailedMessage.
const (
	Retrying = "retrying" // its head is tried again and again
	Parked   = "parked"   // nothing of it is tried until it is released
	Skipped  = "skipped"  // it was left out; its key has gone on
	Removed  = "removed"  // by an operator
)

// FailedQuery selects messages of the failure store; zero fields select all that
// are not removed.
type FailedQuery struct {
	Numbers              []int64
	State                string
	Transport, Key, Name string
	After                int64 // only greater numbers
	Limit                int
}

// FailedMessage is one that a relay or an operator has skipped.
type FailedMessage struct {
	Number        int64             `json:"number"` // in the failure store, in order within a key
	State         string            `json:"state"`  // Skipped or Removed
	Transport     string            `json:"transport"`
	Name          string            `json:"name"`
	Key           string            `json:"key"`
	ID            waybill.MessageID `json:"id"`
	CreatedAt     time.Time         `json:"created_at"`
	Failures      int               `json:"failures"`
	FirstFailedAt *time.Time        `json:"first_failed_at,omitempty"`
	FailedAt      time.Time         `json:"failed_at"` // when it came here, or was refused last
	LastError     string            `json:"last_error"`
	RemovedAt     *time.Time        `json:"removed_at,omitempty"`
	Bytes         int               `json:"bytes"`
}

// FailedContent is what a failed message carries.
type FailedContent struct {
	Headers json.RawMessage
	Body    []byte
}

// OutboxStats counts one transport's messages.
type OutboxStats struct {
	Transport        string  `json:"transport"`
	Pending          int     `json:"pending"`
	OldestAgeSeconds float64 `json:"oldest_age_seconds"`
	BlockedKeys      int     `json:"blocked_keys"`
	Delayed          int     `json:"delayed"`
	Failed           int     `json:"failed"` // in the failure store
}

// QueueStats counts one queue's messages.
type QueueStats struct {
	Queue            string  `json:"queue"`
	Pending          int     `json:"pending"` // all of them
	InHand           int     `json:"in_hand"` // lent to a worker
	Retrying         int     `json:"retrying"`
	OldestAgeSeconds float64 `json:"oldest_age_seconds"`
}

// InboxStats counts one handler's entries.
type InboxStats struct {
	Handler string    `json:"handler"`
	Entries int       `json:"entries"`
	Oldest  time.Time `json:"oldest"`
	Newest  time.Time `json:"newest"`
}

// InboxEntry says that a handler's effect has happened.
type InboxEntry struct {
	Handler     string            `json:"handler"`
	DedupKey    string            `json:"dedup_key"`
	MessageID   waybill.MessageID `json:"message_id"`
	ProcessedAt time.Time         `json:"processed_at"`
}
