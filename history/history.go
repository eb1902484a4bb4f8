package history

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// Retention is the age at which rows are removed, by the next process that adds some.
	Retention = 7 * 24 * time.Hour
	// PruneBatch is how many expired rows one call of AddHistory removes at most.
	PruneBatch = 10_000
	// Other is the message name of everything beyond the MaxSeries of a minute, and of
	// names that the process does not know.
	Other = "other"
)

// A Store is the history of a database. Its methods may be called concurrently, also by
// other processes.
type Store interface {
	// AddHistory adds rows to those of the same series and minute, all or none, and
	// removes up to PruneBatch rows older than Retention. The caller sorts rows by series
	// and minute, and names each once.
	AddHistory(ctx context.Context, rows []Row) error
	// History returns the rows of q, in order of time and series.
	History(ctx context.Context, q Query) ([]Row, error)
}

// A Query selects rows. Exactly one of Step and BySeries is set.
type Query struct {
	Since, Until time.Time // by whole minutes, Until excluded
	// Step sums all messages up, for each step of so many whole minutes since 1970. Steps
	// without messages have no row.
	Step time.Duration
	// BySeries sums up the whole time, for each series.
	BySeries bool
}

// A Series has counts apart from the others. Empty fields sum up: with all three empty it is every
// message, with an empty Handler the message as a whole.
type Series struct {
	Transport string `json:"transport"`
	Message   string `json:"message"`
	Handler   string `json:"handler"`
}

// A Row is the counts of a series from a time on: those of a minute in a table, those of a
// step or the whole time in the result of a Query.
type Row struct {
	At time.Time `json:"at"`
	Series
	Counts
}

// Minute returns the minutes from 1970 to at, in which rows are stored.
func Minute(at time.Time) int64 { return at.Unix() / 60 }

// Args are the values of all columns of a table, in its order.
func (r *Row) Args() []any {
	return append([]any{r.Transport, r.Message, r.Handler, Minute(r.At)}, r.Columns()...)
}

// Scan reads the columns of a table, in its order.
func (r *Row) Scan(scan func(to ...any) error) error {
	var minute int64
	err := scan(append([]any{&r.Transport, &r.Message, &r.Handler, &minute}, r.Columns()...)...)
	r.At = time.Unix(60*minute, 0).UTC()
	return err
}

// Statement returns the name of the statement of q, by_step or by_series, and its arguments
// in minutes.
func (q Query) Statement() (name string, args []any, err error) {
	since, until := Minute(q.Since), Minute(q.Until)
	switch {
	case q.BySeries == (q.Step != 0), q.Step < 0, q.Step%time.Minute != 0:
		return "", nil, fmt.Errorf("history: a query by series, or by a step of whole minutes: step %v, by series %v", q.Step, q.BySeries)
	case q.BySeries:
		return "by_series", []any{since, until}, nil
	}
	return "by_step", []any{int64(q.Step / time.Minute), since, until}, nil
}

// Counts are sums. Those of a handler have Handled, Failed, Duplicates, HandlingMicros and
// Critical.
type Counts struct {
	Dispatched int64 `json:"dispatched"` // to the outbox, or sent
	Published  int64 `json:"published"`  // by a relay
	Refused    int64 `json:"refused"`    // by the broker, attempts
	Handled    int64 `json:"handled"`    // messages with success, duplicates included
	Failed     int64 `json:"failed"`     // attempts to handle
	Retried    int64 `json:"retried"`    // failed attempts after which the message waits for another
	Duplicates int64 `json:"duplicates"` // runs of a handler without effect
	Skipped    int64 `json:"skipped"`    // new dead letters
	// PublishMicros is the time from dispatch to confirmation, of all Published together.
	PublishMicros int64 `json:"publish_micros"`
	// HandlingMicros is the time in handlers, of all Handled together.
	HandlingMicros int64 `json:"handling_micros"`
	// Critical is the time from dispatch to the end of handling, of Handled without
	// duplicates.
	Critical Histogram `json:"critical"`
}

// Columns returns pointers to the columns that are summed up, in the order of the table.
// They are arguments and destinations of the statements of a Store.
func (c *Counts) Columns() []any {
	columns := []any{&c.Dispatched, &c.Published, &c.Refused, &c.Handled, &c.Failed, &c.Retried, &c.Duplicates, &c.Skipped, &c.PublishMicros, &c.HandlingMicros}
	for i := range c.Critical {
		columns = append(columns, &c.Critical[i])
	}
	return columns
}

// Add adds o.
func (c *Counts) Add(o Counts) {
	others := o.Columns()
	for i, column := range c.Columns() {
		*column.(*int64) += *others[i].(*int64)
	}
}

// A Histogram counts times by Bounds. Those of several processes add up.
type Histogram [20]int64

// Bounds are the upper ends of the buckets of a Histogram; the last bucket has no end.
var Bounds = [len(Histogram{}) - 1]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	30 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 6 * time.Hour,
}

// Observe counts one time.
func (h *Histogram) Observe(d time.Duration) {
	i, _ := slices.BinarySearch(Bounds[:], d)
	h[i]++
}

// Count returns how many times there are.
func (h *Histogram) Count() (n int64) {
	for _, in := range h {
		n += in
	}
	return n
}

// Quantile returns the time below which the share q of all times lies, estimated within its
// bucket. It is zero without times, and six hours in the last bucket.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank, before, low := q*float64(h.Count()), 0.0, time.Duration(0)
	for i, bound := range Bounds {
		n := float64(h[i])
		if n > 0 && before+n >= rank {
			return low + time.Duration(float64(bound-low)*(rank-before)/n)
		}
		before, low = before+n, bound
	}
	if before == 0 && h[len(Bounds)] == 0 {
		return 0
	}
	return low
}
