package history

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

// A table keeps the batches of rows, and fails while err is set.
type table struct {
	mu      sync.Mutex
	batches [][]Row
	tries   int
	err     error
}

func (s *table) AddHistory(ctx context.Context, rows []Row) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	if s.err == nil {
		s.batches = append(s.batches, rows)
	}
	return s.err
}

func (s *table) History(context.Context, Query) ([]Row, error) { return nil, nil }

func (s *table) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.tries = err, 0
}

func newRecorder(t *testing.T, s Store, log *slog.Logger) *Recorder {
	t.Helper()
	r, err := New(s, Config{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEachEventIsCountedOnce(t *testing.T) {
	r := newRecorder(t, &table{}, nil)
	placed := waybill.Event{Transport: "orders", Name: "order.placed"}
	as := func(kind waybill.EventKind, change func(*waybill.Event)) {
		e := placed
		e.Kind = kind
		if change != nil {
			change(&e)
		}
		r.Observe(t.Context(), e)
	}
	failure := errors.New("no")
	as(waybill.Dispatched, nil)
	as(waybill.Published, func(e *waybill.Event) { e.Duration = 3 * time.Millisecond })
	as(waybill.PublishFailed, nil)
	as(waybill.KeyBlocked, nil)
	as(waybill.Handled, func(e *waybill.Event) {
		e.Duration, e.Age = 5*time.Millisecond, 40*time.Millisecond
		e.Handlers = []waybill.HandlerRun{{Handler: "billing", Duration: 4 * time.Millisecond}, {Handler: "mail", Duration: time.Millisecond, Duplicate: true}}
	})
	as(waybill.Handled, func(e *waybill.Event) {
		e.Age, e.Err = time.Second, failure
		e.Handlers = []waybill.HandlerRun{{Handler: "billing", Err: failure}, {Handler: "mail", Duration: time.Millisecond}}
	})
	as(waybill.Handled, func(e *waybill.Event) { e.Age, e.Err = time.Second, worker.ErrDrained })
	as(waybill.Handled, func(e *waybill.Event) {
		e.Age, e.Handlers = time.Second, []waybill.HandlerRun{{Handler: "mail", Duplicate: true}}
	})
	as(waybill.Retrying, func(e *waybill.Event) { e.Err = failure })
	as(waybill.Skipped, func(e *waybill.Event) { e.Err = failure })
	message := Counts{Dispatched: 1, Published: 1, Refused: 1, Handled: 2, Failed: 1, Retried: 1, Duplicates: 2, Skipped: 1, PublishMicros: 3000, HandlingMicros: 5000, Critical: times(40 * time.Millisecond)}
	want := map[Series]Counts{
		{}:                                    message,
		{"orders", "order.placed", ""}:        message,
		{"orders", "order.placed", "billing"}: {Handled: 1, Failed: 1, HandlingMicros: 4000, Critical: times(40 * time.Millisecond)},
		{"orders", "order.placed", "mail"}:    {Handled: 3, Duplicates: 2, HandlingMicros: 2000, Critical: times(time.Second)},
	}
	got := map[Series]Counts{}
	for _, row := range r.take() {
		c := got[row.Series]
		c.Add(row.Counts)
		got[row.Series] = c
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if rows := r.take(); len(rows) != 0 {
		t.Errorf("taken twice: %v", rows)
	}
}

func TestUnreadableMessagesShareASeries(t *testing.T) {
	r := newRecorder(t, &table{}, nil)
	for i := range 2 * MaxSeries {
		unreadable := &waybill.Record{Problem: errors.New("no message id")}
		r.Observe(t.Context(), waybill.Event{Kind: waybill.Handled, Transport: "orders", Name: fmt.Sprint("junk.", i), Record: unreadable, Err: &waybill.DecodeError{Err: unreadable.Problem}})
	}
	if rows := r.take(); len(rows) != 2 || rows[0].Series != (Series{}) && rows[1].Series != (Series{}) {
		t.Errorf("%d series, want one beside that of all messages", len(rows))
	}
}

func times(ds ...time.Duration) (h Histogram) {
	for _, d := range ds {
		h.Observe(d)
	}
	return h
}

func TestRecorderWritesOnceAMinuteAndAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &table{}
		r := newRecorder(t, store, nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		const minutes = 10
		for range minutes * 60 {
			r.Observe(ctx, waybill.Event{Kind: waybill.Dispatched, Transport: "t", Name: "a"})
			time.Sleep(time.Second)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
		var all Counts
		for _, rows := range store.batches {
			for _, row := range rows {
				if row.Series == (Series{}) {
					all.Add(row.Counts)
				}
			}
			if !slices.IsSortedFunc(rows, func(a, b Row) int { return strings.Compare(a.Message, b.Message) }) || len(rows) > 4 {
				t.Errorf("a batch of %v, want the minutes of two series at most", rows)
			}
		}
		if n := len(store.batches); all != (Counts{Dispatched: minutes * 60}) || n < minutes || n > minutes+2 {
			t.Errorf("%d batches with %+v, want one a minute with %d messages", n, all, minutes*60)
		}
	})
}

// A database that is away loses counts, and holds up nothing: an outage is two lines of the log.
func TestRecorderDropsCountsWhileTheDatabaseIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &table{err: waybill.ErrUnavailable}
		var log strings.Builder
		r := newRecorder(t, store, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		observe := func(minutes int) {
			for range minutes {
				r.Observe(ctx, waybill.Event{Kind: waybill.Dispatched, Transport: "t", Name: "a"})
				time.Sleep(time.Minute)
			}
		}
		observe(5)
		synctest.Wait()
		if n := r.Dropped(); n != 10 || len(r.ended) > 1 {
			t.Errorf("%d rows dropped, %d kept, want 10 and none", n, len(r.ended))
		}
		store.set(nil)
		observe(2)
		store.set(waybill.ErrTransactionLost)
		observe(1)
		synctest.Wait()
		if store.tries != lostTries {
			t.Errorf("%d tries of a write that was rolled back, want %d", store.tries, lostTries)
		}
		cancel()
		<-ended
		if n := strings.Count(log.String(), "history written again"); n != 1 || strings.Count(log.String(), "history not written") != 2 || r.Dropped() != 12 {
			t.Errorf("%d dropped, log:\n%s\nwant a line for each beginning and end of an outage", r.Dropped(), &log)
		}
	})
}

// A program may observe and forget Run, or start it late.
func TestRecorderThatDoesNotRunIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t, &table{}, nil)
		const minutes = maxEnded/100 + 10
		for range minutes {
			for i := range 100 {
				r.Observe(t.Context(), waybill.Event{Kind: waybill.Dispatched, Transport: "t", Name: fmt.Sprint("m", i)})
			}
			time.Sleep(time.Minute)
		}
		if n := len(r.ended); n != maxEnded || r.Dropped() != 900 {
			t.Errorf("%d rows kept and %d dropped, want %d, and 900 of the last minutes", n, r.Dropped(), maxEnded)
		}
		if rows := r.take(); len(rows) != maxEnded+maxEnded/100 || r.Dropped() != 1000 {
			t.Errorf("%d rows taken and %d dropped, want the kept ones with the sums of their minutes", len(rows), r.Dropped())
		}
	})
}

// A slowTable takes two seconds for a write, unless its context ends.
type slowTable struct{ table }

func (s *slowTable) AddHistory(ctx context.Context, rows []Row) error {
	select {
	case <-time.After(2 * time.Second):
		return s.table.AddHistory(ctx, rows)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestStopDuringAWriteDropsNoCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowTable{}
		var log strings.Builder
		r := newRecorder(t, store, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		r.Observe(ctx, waybill.Event{Kind: waybill.Dispatched, Transport: "t", Name: "a"})
		for {
			time.Sleep(time.Second)
			r.mu.Lock()
			taken := r.known[name{"t", "a"}].counts == (Counts{})
			r.mu.Unlock()
			if taken { // and the write takes another second
				break
			}
		}
		cancel()
		if err := <-ended; err != nil || r.Dropped() != 0 || len(store.batches) != 1 || log.Len() > 0 {
			t.Errorf("Run = %v, %d batches, %d rows dropped, log %q, want one batch and none dropped", err, len(store.batches), r.Dropped(), &log)
		}
	})
}

func TestQuantilesAreWithinTheirBucket(t *testing.T) {
	var h Histogram
	var all []time.Duration
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		d := time.Duration(random.ExpFloat64() * float64(80*time.Millisecond))
		h.Observe(d)
		all = append(all, d)
	}
	slices.Sort(all)
	for _, q := range []float64{0.01, 0.5, 0.95, 0.99} {
		got, want := h.Quantile(q), all[int(q*float64(len(all)))]
		bucket := func(d time.Duration) int { i, _ := slices.BinarySearch(Bounds[:], d); return i }
		if bucket(got) != bucket(want) {
			t.Errorf("Quantile(%v) = %v, want it in the bucket of %v", q, got, want)
		}
	}
	for want, h := range map[time.Duration]Histogram{0: {}, 6 * time.Hour: times(time.Hour * 24), 750 * time.Millisecond: times(time.Second, time.Second)} {
		if got := h.Quantile(0.5); got != want {
			t.Errorf("Quantile of %v = %v, want %v", h, got, want)
		}
	}
}

// Observe is on the path of every message.
func TestObserveAllocatesNothing(t *testing.T) {
	r := newRecorder(t, &table{}, nil)
	e := waybill.Event{Kind: waybill.Handled, Transport: "orders", Name: "order.placed", Age: time.Millisecond, Handlers: []waybill.HandlerRun{{Handler: "billing"}}}
	if n := testing.AllocsPerRun(100, func() { r.Observe(t.Context(), e) }); n >= 1 { // once a minute the rows of one before
		t.Errorf("%v allocations for an event, want none", n)
	}
}

// The cost of an event on the path of a message, with a handler.
func BenchmarkObserve(b *testing.B) {
	r, err := New(&table{}, Config{})
	if err != nil {
		b.Fatal(err)
	}
	e := waybill.Event{Kind: waybill.Handled, Transport: "orders", Name: "order.placed", Age: time.Millisecond, Duration: time.Millisecond}
	for i := range 1 {
		e.Handlers = append(e.Handlers, waybill.HandlerRun{Handler: fmt.Sprint("handler", i), Duration: time.Millisecond})
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r.Observe(context.Background(), e)
		}
	})
}
