package admin

import (
	"context"
	"encoding/json"
	"time"
)

// DeadLetters is an operator's further view of the dead letters of a Database that has
// Retries too. Its methods may be called concurrently.
type DeadLetters interface {
	// FailedGroups counts the dead letters by the fingerprint of their last error, those
	// without one by the error itself, the largest group first.
	FailedGroups(ctx context.Context, q FailedQuery) ([]FailedGroup, error)
	// FailedHours counts the dead letters of each group by the hour before at in which they
	// failed, of the last 24. Hours without any are not in the list, which has no order.
	FailedHours(ctx context.Context, q FailedQuery, at time.Time) ([]FailedHour, error)
	// FailedAgain counts which of replayed messages have failed since: the dead letters
	// among them, and those with a failed attempt in a retry queue.
	FailedAgain(ctx context.Context, replayed ...FailedMessage) (int, error)
	// RetryFailedAsNew sends failed messages again under new ids, with the old ones as
	// their causation ids, all or none, and returns how many. Entries of workers stay on
	// record as removed.
	RetryFailedAsNew(ctx context.Context, numbers ...int64) (int, error)
	// EditFailed replaces the body of a dead letter, which is from, by to. The audit keeps
	// from. It returns an error that wraps ErrChanged if the body is another one.
	EditFailed(ctx context.Context, number int64, from, to []byte) error
	// Audit lists the changes of operators with lesser numbers than before, the newest first;
	// zero means all.
	Audit(ctx context.Context, before int64, limit int) ([]AuditEntry, error)
}

// FailedGroup counts dead letters with equal errors.
type FailedGroup struct {
	Fingerprint   string    `json:"fingerprint,omitempty"` // empty for those of relays
	Messages      int       `json:"messages"`
	FirstFailedAt time.Time `json:"first_failed_at"` // the first attempt at any of them
	LastFailedAt  time.Time `json:"last_failed_at"`
	Names         []string  `json:"names"`
	Handlers      []string  `json:"handlers"`
	Example       int64     `json:"example"` // number of the last one
	Error         string    `json:"error"`   // of the last one
}

// FailedHour counts the dead letters of a group that failed within one hour.
type FailedHour struct {
	Fingerprint string
	Error       string // of those without a fingerprint
	Ago         int    // full hours, 0 to 23
	Messages    int
}

// LastDay narrows q down to dead letters that failed less than 24 hours before at.
func (q FailedQuery) LastDay(at time.Time) FailedQuery {
	if since := at.Add(-24*time.Hour + time.Microsecond); q.Since.Before(since) {
		q.Since = since
	}
	if q.Until.IsZero() || q.Until.After(at) {
		q.Until = at
	}
	return q
}

// AuditEntry is one transaction in which an operator changed messages.
type AuditEntry struct {
	Number   int64           `json:"number"`
	At       time.Time       `json:"at"`
	Actor    string          `json:"actor"`    // user@host
	Action   string          `json:"action"`   // the command
	Filter   json.RawMessage `json:"filter"`   // its selection; of an edit number and original_body_base64, the body before it
	Messages int             `json:"messages"` // or keys, of a release
}
