// Package admin is the contract between a database and the tools of its operators:
// the command line and dashboards read and repair through it.
package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
)

// A Database is an operator's view of a database. Its methods may be called
// concurrently, also while relays and workers run. Counts are exact.
type Database interface {
	// SchemaUp creates or upgrades the tables; it may be repeated.
	SchemaUp(ctx context.Context) (SchemaStatus, error)
	// Rebucket changes the number of the outbox's buckets. Dispatchers and relays
	// may run: they wait meanwhile, and an open transaction may have to be run
	// again. With dryRun it only counts. The error of a database without buckets wraps
	// errors.ErrUnsupported.
	Rebucket(ctx context.Context, buckets int, dryRun bool) (Rebucketed, error)
	// SchemaStatus compares the tables with the schema of this version.
	SchemaStatus(ctx context.Context) (SchemaStatus, error)
	// SchemaSQL returns the SQL that SchemaUp runs on an empty database.
	SchemaSQL() (string, error)

	// Outbox lists messages that are not published yet, oldest first.
	Outbox(ctx context.Context, q OutboxQuery) ([]OutboxMessage, error)
	// Blocked lists the blocked routes and then the keys, parked ones included, each
	// longest blocked first.
	Blocked(ctx context.Context, transport string, limit int) ([]BlockedKey, error)
	// BlockedKeys lists entries as Blocked does. Waiting and Parked are those of a Key that it is
	// asked for; without one they are zero, and it does not read the outbox.
	BlockedKeys(ctx context.Context, q BlockedKeysQuery) ([]BlockedKey, error)
	// Release makes blocked routes and keys due at once, and returns how many. An
	// entry without rows in the outbox is removed. The rows of a parked key move back
	// in batches, in order; none is published before the last one is back.
	Release(ctx context.Context, q BlockedQuery) (int, error)
	// Failed lists the dead letters, oldest first.
	Failed(ctx context.Context, q FailedQuery) ([]FailedMessage, error)
	// FailedContent returns headers and body of a failed message; they may be secret.
	FailedContent(ctx context.Context, number int64) (FailedContent, error)
	// RetryFailed dispatches skipped messages again, and adds failed ones to the retry
	// queues of their transports, all or none. They have their old ids, and come behind the
	// pending messages of their keys. It returns how many; removed ones are left out, and
	// those in a retry queue.
	RetryFailed(ctx context.Context, numbers ...int64) (int, error)
	// RemoveFailed deletes body and headers of failed messages, which can then not be
	// sent any more, and returns how many. Their entries stay on record.
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
	// InboxEntries returns the latest entries, newest first.
	InboxEntries(ctx context.Context, q InboxQuery) ([]InboxEntry, error)
	// InboxOlder counts the entries older than age.
	InboxOlder(ctx context.Context, age time.Duration) (int, error)
	// InboxRetention is how long the inbox of this database must keep entries: the longest
	// retention that an application with a handler has recorded at its first message, or
	// what SetInboxRetention has set since. Zero means that none has.
	InboxRetention(ctx context.Context) (time.Duration, error)
	// SetInboxRetention replaces the recorded retention. Applications with a longer one must
	// have been restarted with a shorter: they would handle a pruned message again.
	SetInboxRetention(ctx context.Context, d time.Duration) error
	// InboxPrune removes the entries older than age in batches and reports each
	// batch's size, until none is left or ctx ends. An age below InboxRetention is a
	// *RetentionError.
	InboxPrune(ctx context.Context, age time.Duration, progress func(removed int)) (int, error)
}

// SchemaStatus is the version of the tables, and the version that is wanted.
type SchemaStatus struct {
	Database string   `json:"database"`
	Prefix   string   `json:"prefix"`
	Version  int      `json:"version"` // 0 means no tables
	Wanted   int      `json:"wanted"`
	Pending  []string `json:"pending,omitempty"` // migrations that are missing
	Applied  []string `json:"applied,omitempty"` // by this SchemaUp
}

// MaxRebucket is how many pending keyed messages Rebucket accepts: they are moved
// while dispatchers and relays wait.
const MaxRebucket = 20_000

// Rebucketed is the result of Rebucket.
type Rebucketed struct {
	Database string        `json:"database"`
	From     int           `json:"from"`
	To       int           `json:"to"`
	Rows     int           `json:"rows"`     // keyed messages that were moved
	Stall    time.Duration `json:"stall_ns"` // how long dispatchers and relays may have waited
}

// ErrChanged is wrapped by the error of a change that another operator has overtaken.
var ErrChanged = errors.New("changed meanwhile")

// ErrSchema is wrapped by the errors of SchemaStatus.Err.
var ErrSchema = errors.New("the schema does not fit")

// Err returns an error with its remedy, unless this version can work with the tables:
// they have the wanted version, or one more.
func (s SchemaStatus) Err() error {
	switch {
	case s.Version == 0:
		return fmt.Errorf("%w: %s has no waybill tables (prefix %s): run `waybill schema up`, or call SchemaUp", ErrSchema, s.Database, s.Prefix)
	case s.Version < s.Wanted:
		return fmt.Errorf("%w: the tables of %s have version %d, this waybill needs %d: run `waybill schema up`, or call SchemaUp", ErrSchema, s.Database, s.Version, s.Wanted)
	case s.Version > s.Wanted+1:
		return fmt.Errorf("%w: the tables of %s have version %d, this waybill knows %d: use a newer waybill", ErrSchema, s.Database, s.Version, s.Wanted)
	}
	return nil
}

// OutboxQuery selects messages; zero fields select all. A key is looked for in its bucket.
// The transport of a queue of the database is its name, or queue://NAME as in the list.
type OutboxQuery struct {
	Transport, Key, Name string
	After                int64          // only rows with a greater id, without delayed ones
	Behind               *OutboxMessage // only messages behind this one of the list, delayed ones included; After does not count then
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

// BlockedQuery selects blocked keys and routes; zero fields select all.
type BlockedQuery struct {
	Transport string `json:"transport,omitempty"`
	Key       string `json:"key,omitempty"`
	Route     string `json:"route,omitempty"`
	Row       int64  `json:"row,omitempty"` // of a message without key
	// SkipHead first moves the refused message of each to the dead letters. A route
	// has no such message.
	SkipHead bool `json:"skip_head,omitempty"`
}

// BlockedKeysQuery selects entries to list; zero fields select all.
type BlockedKeysQuery struct {
	Transport, Key string
	After          *BlockedKey // only entries after this one
	Limit          int
}

// A Relay is the last report of a running relay.
type Relay struct {
	Transport  string     `json:"transport"`
	Host       string     `json:"host"`
	PID        int        `json:"pid"`
	StartedAt  time.Time  `json:"started_at"`
	SeenAt     time.Time  `json:"seen_at"`
	AgeSeconds float64    `json:"age_seconds"`        // of the report, by the clock of the database
	Problem    string     `json:"problem,omitempty"`  // why it cannot publish
	Degraded   string     `json:"degraded,omitempty"` // why it publishes later than it could; empty with a Problem
	Since      *time.Time `json:"since,omitempty"`    // when that began
}

// Ago returns how long ago a time of the report was, all by the clock of the database: that of the
// reader may differ.
func (r Relay) Ago(at time.Time) time.Duration { return ago(at, r.SeenAt, r.AgeSeconds) }

func ago(at, seen time.Time, age float64) time.Duration {
	return seen.Sub(at) + time.Duration(age*float64(time.Second))
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
	Policy        string            `json:"policy"`  // applied when it is exhausted: see outbox.Policy
	Waiting       int               `json:"waiting"` // rows in the outbox, the head included
	Parked        int               `json:"parked"`  // of Waiting, the parked rows
}

// The states of a BlockedKey and of a FailedMessage.
const (
	Retrying = "retrying" // its head is retried
	Parked   = "parked"   // its rows are not published until it is released
	Skipped  = "skipped"  // its key continues without it
	Removed  = "removed"  // an operator deleted its content
	Failed   = "failed"   // a worker has moved it to the dead letters; Retrying while a replay is in the retry queue
)

// The sources of a FailedMessage.
const (
	FromOutbox = "outbox" // a relay, or an operator who skipped a blocked message
	FromWorker = "worker"
)

// FailedQuery selects dead letters; zero fields select all but removed ones.
type FailedQuery struct {
	Numbers              []int64
	State                string
	Transport, Key, Name string
	After                int64 // only greater numbers
	Limit                int

	Source, FailureTransport, Handler, Fingerprint string
	Error                                          string    // part of the last error, in any case
	Since, Until                                   time.Time // of FailedAt: not before Since, before Until
}

// Span returns the numbers among which q selects: those above after, up to last.
func (q FailedQuery) Span() (after, last int64) {
	if len(q.Numbers) == 0 {
		return q.After, math.MaxInt64
	}
	return max(q.After, slices.Min(q.Numbers)-1), slices.Max(q.Numbers)
}

// FailedMessage is a dead letter: a message that a relay or an operator has skipped, or
// a worker could not handle. A worker's message has one entry, however often it fails.
type FailedMessage struct {
	Number        int64             `json:"number"`           // among the dead letters, in order within a key
	State         string            `json:"state"`            // Skipped, Failed, Retrying or Removed
	Source        string            `json:"source,omitempty"` // FromOutbox or FromWorker
	Transport     string            `json:"transport"`
	Name          string            `json:"name"`
	Key           string            `json:"key"`
	ID            waybill.MessageID `json:"id"`
	CreatedAt     time.Time         `json:"created_at"`
	Failures      int               `json:"failures"`
	FirstFailedAt *time.Time        `json:"first_failed_at,omitempty"`
	FailedAt      time.Time         `json:"failed_at"` // when it became a dead letter, or was refused last
	LastError     string            `json:"last_error"`
	RemovedAt     *time.Time        `json:"removed_at,omitempty"`
	Bytes         int               `json:"bytes"`

	// The rest is of a worker's last attempt.
	FailureTransport string `json:"failure_transport,omitempty"`
	Handler          string `json:"handler,omitempty"`
	ErrorType        string `json:"error_type,omitempty"`
	Fingerprint      string `json:"fingerprint,omitempty"`
}

// FailedContent is the headers and body of a failed message.
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
	Failed           int     `json:"failed"` // dead letters
}

// QueueStats counts one queue's messages.
type QueueStats struct {
	Queue            string  `json:"queue"`
	Pending          int     `json:"pending"`   // all messages of the queue
	InFlight         int     `json:"in_flight"` // delivered to a worker and not settled
	Retrying         int     `json:"retrying"`
	OldestAgeSeconds float64 `json:"oldest_age_seconds"`
}

// A RetentionError refuses to prune entries that an application counts on.
type RetentionError struct{ Age, Recorded time.Duration }

func (e *RetentionError) Error() string {
	return fmt.Sprintf("an age of %v is less than the retention of %v that is recorded in the database: a message handled between the two could be handled again", e.Age, e.Recorded)
}

// CheckRetention refuses to prune entries of an age below the recorded retention.
func CheckRetention(age, recorded time.Duration) error {
	if age < recorded {
		return &RetentionError{Age: age, Recorded: recorded}
	}
	return nil
}

// InboxStats counts one handler's entries.
type InboxStats struct {
	Handler string    `json:"handler"`
	Entries int       `json:"entries"`
	Oldest  time.Time `json:"oldest"`
	Newest  time.Time `json:"newest"`
}

// InboxSearch bounds the entries that a query with a handler looks at.
const InboxSearch = 5000

// An InboxQuery selects entries of the inbox. Handler is an exact one; empty means all.
type InboxQuery struct {
	Handler string
	After   *InboxEntry // only entries behind this one
	Limit   int         // zero means all
}

// Page returns the entry before the first one, how many entries are wanted, and how many are
// looked at for them.
func (q InboxQuery) Page() (after InboxEntry, limit, searched int) {
	after, limit = InboxEntry{ProcessedAt: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}, cmp.Or(q.Limit, math.MaxInt)
	if q.After != nil {
		after = *q.After
	}
	if q.Handler == "" {
		return after, limit, limit
	}
	return after, limit, InboxSearch
}

// InboxEntry records that a handler's effect has happened.
type InboxEntry struct {
	Handler     string            `json:"handler"`
	DedupKey    string            `json:"dedup_key"`
	MessageID   waybill.MessageID `json:"message_id"`
	ProcessedAt time.Time         `json:"processed_at"`
}
