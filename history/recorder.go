package history

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

const (
	// MaxSeries bounds the series of a process: the first ones have rows apart,
	// and all others count as Other of their transport.
	MaxSeries = 500
	// writeEvery is the time between two writes, and writeTimeout that of one.
	writeEvery   = time.Minute
	writeTimeout = 5 * time.Second
	// lostTries is how often a write is tried that the database has rolled back.
	lostTries = 3
	// maxEnded bounds the rows that are not written. A Run that writes once a minute leaves
	// no more than those of two minutes.
	maxEnded = 10 * MaxSeries
)

// Config tunes a Recorder.
type Config struct {
	// Log receives a line when the database cannot be written, and one when it can again.
	// Nil discards.
	Log *slog.Logger
}

// A Recorder is a waybill.Observer that counts for a Store. Observe is called concurrently,
// and Run once.
type Recorder struct {
	store   Store
	log     *slog.Logger
	dropped atomic.Int64

	mu    sync.Mutex
	known map[name]*series // guarded by mu, as all fields below
	n     int              // of series
	ended []Row            // of minutes before the present one, which are not written
}

// A name is a key of known.
type name struct{ transport, message string }

// A series is the counts of one series in its present minute.
type series struct {
	Series
	minute   int64
	counts   Counts
	handlers []*series // of a message; few, so that they are searched one by one
}

// New returns a recorder for store. It writes while Run runs, and without it drops all but
// the first few thousand rows.
func New(store Store, cfg Config) (*Recorder, error) {
	if store == nil {
		return nil, errors.New("history: New needs a store")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Recorder{store: store, log: cfg.Log, known: map[name]*series{}}, nil
}

var _ waybill.Observer = (*Recorder)(nil)

// Dropped returns how many rows could not be written, and are lost.
func (r *Recorder) Dropped() int64 { return r.dropped.Load() }

// Observe implements waybill.Observer.
func (r *Recorder) Observe(_ context.Context, e waybill.Event) {
	now := Minute(time.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.message(e)
	c := r.in(now, s)
	switch e.Kind {
	case waybill.Dispatched:
		c.Dispatched++
	case waybill.Published:
		c.Published++
		c.PublishMicros += e.Duration.Microseconds()
	case waybill.PublishFailed:
		c.Refused++
	case waybill.Retrying:
		c.Retried++
	case waybill.Skipped:
		c.Skipped++
	case waybill.Handled:
		r.handled(now, s, c, e)
	}
}

// handled counts an attempt to handle a message, and the runs of its handlers.
func (r *Recorder) handled(now int64, s *series, c *Counts, e waybill.Event) {
	duplicates := 0
	for _, run := range e.Handlers {
		of := r.in(now, r.handler(s, run.Handler))
		switch {
		case run.Err != nil && !(worker.Failed(run.Err) && worker.Failed(e.Err)): // interrupted
		case run.Err != nil:
			of.Failed++
		default:
			of.add(run.Duration, e.Age, run.Duplicate)
			if run.Duplicate {
				duplicates++
				of.Duplicates++
			}
		}
	}
	c.Duplicates += int64(duplicates)
	switch {
	case e.Err == nil:
		c.add(e.Duration, e.Age, duplicates > 0 && duplicates == len(e.Handlers))
	case worker.Failed(e.Err):
		c.Failed++
	}
}

// add counts one success.
func (c *Counts) add(took, age time.Duration, duplicate bool) {
	c.Handled++
	c.HandlingMicros += took.Microseconds()
	if age > 0 && !duplicate {
		c.Critical.Observe(age)
	}
}

// message returns the series of a message. It is called under mu, as the next ones are.
func (r *Recorder) message(e waybill.Event) *series {
	if s := r.known[name{e.Transport, e.Name}]; s != nil {
		return s
	}
	key := name{e.Transport, e.Name}
	unknown := (*waybill.UnknownNameError)(nil)
	if r.n >= MaxSeries || !storable(e.Name) || errors.As(e.Err, &unknown) || e.Record != nil && e.Record.Problem != nil {
		key.message = Other
	} else {
		r.n++
	}
	if r.known[key] == nil {
		r.known[key] = &series{Series: Series{key.transport, key.message, ""}}
	}
	return r.known[key]
}

// handler returns the series of a handler of a message.
func (r *Recorder) handler(of *series, name string) *series {
	for {
		for _, s := range of.handlers {
			if s.Handler == name {
				return s
			}
		}
		if name == Other || r.n < MaxSeries && of.Message != Other {
			break
		}
		name = Other
	}
	r.n++
	s := &series{Series: Series{of.Transport, of.Message, name}}
	of.handlers = append(of.handlers, s)
	return s
}

// in returns the counts of s in a minute, after it has put aside those of an earlier one.
func (r *Recorder) in(minute int64, s *series) *Counts {
	if s.minute != minute {
		r.end(s)
		s.minute = minute
	}
	return &s.counts
}

// end adds the counts of s to the rows to write.
func (r *Recorder) end(s *series) {
	switch {
	case s.counts == (Counts{}):
		return
	case len(r.ended) < maxEnded:
		r.ended = append(r.ended, Row{time.Unix(60*s.minute, 0).UTC(), s.Series, s.counts})
	default:
		r.dropped.Add(1)
	}
	s.counts = Counts{}
}

// storable reports whether a name fits its column.
func storable(name string) bool {
	return name != "" && len(name) <= 190 && utf8.ValidString(name) && !strings.ContainsRune(name, 0)
}

// Run writes once a minute until ctx ends, and then once more. It returns nil. The end of ctx
// does not cut a write off.
func (r *Recorder) Run(ctx context.Context) error {
	failing, writing := false, context.WithoutCancel(ctx)
	for wait := rand.N(writeEvery); ; wait = writeEvery { // processes write at different times
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			r.write(writing, &failing)
			return nil
		}
		r.write(writing, &failing)
	}
}

// write adds the counts since the last write to the store, or drops them.
func (r *Recorder) write(ctx context.Context, failing *bool) {
	rows := r.take()
	if len(rows) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var err error
	for range lostTries {
		if err = r.store.AddHistory(ctx, rows); !errors.Is(err, waybill.ErrTransactionLost) {
			break
		}
	}
	switch {
	case err != nil:
		r.dropped.Add(int64(len(rows)))
		if !*failing {
			r.log.LogAttrs(ctx, slog.LevelWarn, "history not written, its counts are dropped until it can be", slog.Any("err", err))
		}
	case *failing:
		r.log.LogAttrs(ctx, slog.LevelInfo, "history written again", slog.Int64("dropped_rows", r.Dropped()))
	}
	*failing = err != nil
}

// take returns the counts since the last call in the order of a Store, with the sums of all
// messages, and begins anew.
func (r *Recorder) take() []Row {
	r.mu.Lock()
	for _, message := range r.known {
		r.end(message)
		for _, handler := range message.handlers {
			r.end(handler)
		}
	}
	rows := r.ended
	r.ended = nil
	r.mu.Unlock()
	all := map[time.Time]*Counts{}
	for _, row := range rows {
		if row.Handler == "" {
			if all[row.At] == nil {
				all[row.At] = &Counts{}
			}
			all[row.At].Add(row.Counts)
		}
	}
	for at, c := range all {
		rows = append(rows, Row{at, Series{}, *c})
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(strings.Compare(a.Transport, b.Transport), strings.Compare(a.Message, b.Message), strings.Compare(a.Handler, b.Handler), a.At.Compare(b.At))
	})
	return rows
}
