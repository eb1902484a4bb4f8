package waytest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/history"
)

func historyCases[TX any]() []testCase[TX] {
	return []testCase[TX]{
		{"MinutesOfProcessesAddUp", minutesOfProcessesAddUp[TX]},
		{"WritersOfAMinuteLoseNothing", writersOfAMinuteLoseNothing[TX]},
		{"ExpiredMinutesArePruned", expiredMinutesArePruned[TX]},
		{"StrangeNamesDoNotFillTheHistory", strangeNamesDoNotFillTheHistory[TX]},
	}
}

// historian returns the history of a store, or skips the case.
func historian[TX any](t *testing.T, store Store[TX]) history.Store {
	t.Helper()
	found, ok := store.(history.Store)
	if !ok {
		t.Skip("the store keeps no history")
	}
	return found
}

// thisMinute is the end of the present minute.
func thisMinute() time.Time { return time.Now().UTC().Truncate(time.Minute).Add(time.Minute) }

// counts returns counts in which each column is another number, times n.
func counts(n int64) (c history.Counts) {
	for i, column := range c.Columns() {
		*column.(*int64) = n * (int64(i) + 1)
	}
	return c
}

func addHistory(t testing.TB, to history.Store, rows ...history.Row) {
	t.Helper()
	if err := to.AddHistory(t.Context(), rows); err != nil {
		t.Fatalf("AddHistory = %v", err)
	}
}

func wantHistory(t testing.TB, of history.Store, q history.Query, want ...history.Row) {
	t.Helper()
	got, err := of.History(t.Context(), q)
	if diff := cmp.Diff(append([]history.Row{}, want...), got); diff != "" || err != nil {
		t.Errorf("History(%+v) = %v (-want +got):\n%s", q, err, diff)
	}
}

func minutesOfProcessesAddUp[TX any](t *testing.T, s *fixture[TX]) {
	one := historian(t, s.Store)
	two := one
	if s.Another != nil {
		two = historian(t, s.Another(t))
	}
	start := time.Now().UTC().Truncate(time.Hour).Add(-3 * time.Hour)
	all, placed := history.Series{}, history.Series{Transport: "orders", Message: "order.placed"}
	billing := history.Series{Transport: "orders", Message: "order.placed", Handler: "billing"}
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	addHistory(t, one, history.Row{At: at(0), Series: all, Counts: counts(1)}, history.Row{At: at(9), Series: all, Counts: counts(2)},
		history.Row{At: at(0), Series: placed, Counts: counts(3)}, history.Row{At: at(0), Series: billing, Counts: counts(4)})
	addHistory(t, two, history.Row{At: at(0), Series: all, Counts: counts(10)}, history.Row{At: at(10), Series: all, Counts: counts(1 << 40)},
		history.Row{At: at(11), Series: placed, Counts: counts(30)})
	steps := history.Query{Since: start, Until: start.Add(time.Hour), Step: 5 * time.Minute}
	wantHistory(t, two, steps,
		history.Row{At: at(0), Counts: counts(11)}, history.Row{At: at(5), Counts: counts(2)}, history.Row{At: at(10), Counts: counts(1 << 40)})
	wantHistory(t, one, history.Query{Since: start, Until: at(11), BySeries: true},
		history.Row{At: at(0), Series: placed, Counts: counts(3)}, history.Row{At: at(0), Series: billing, Counts: counts(4)})
	wantHistory(t, one, history.Query{Since: start, Until: at(12), BySeries: true},
		history.Row{At: at(0), Series: placed, Counts: counts(33)}, history.Row{At: at(0), Series: billing, Counts: counts(4)})
	wantHistory(t, one, history.Query{Since: at(12), Until: at(60), Step: time.Minute})
	if _, err := one.History(t.Context(), history.Query{Since: start, Until: at(1), Step: time.Second}); err == nil {
		t.Error("History with steps of a second = nil, want an error")
	}
}

func writersOfAMinuteLoseNothing[TX any](t *testing.T, s *fixture[TX]) {
	const writers, times = 4, 15
	store, minute := historian(t, s.Store), thisMinute().Add(-time.Minute)
	var rows []history.Row
	for i := range 10 {
		rows = append(rows, history.Row{At: minute, Series: history.Series{Transport: "orders", Message: fmt.Sprint("m", i)}, Counts: counts(1)})
	}
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range times {
				err := waybill.ErrTransactionLost
				for errors.Is(err, waybill.ErrTransactionLost) {
					err = store.AddHistory(t.Context(), rows)
				}
				if err != nil {
					t.Errorf("AddHistory = %v", err)
				}
			}
		})
	}
	wg.Wait()
	for i := range rows {
		rows[i].Counts = counts(writers * times)
	}
	wantHistory(t, store, history.Query{Since: minute, Until: thisMinute(), BySeries: true}, rows...)
}

func expiredMinutesArePruned[TX any](t *testing.T, s *fixture[TX]) {
	store := historian(t, s.Store)
	kept := time.Now().UTC().Truncate(time.Minute).Add(-history.Retention + 10*time.Minute)
	expired := kept.Add(-20 * time.Minute)
	for range 2 {
		addHistory(t, store, history.Row{At: expired, Counts: counts(1)}, history.Row{At: kept, Counts: counts(1)})
	}
	wantHistory(t, store, history.Query{Since: expired, Until: thisMinute(), Step: time.Minute}, history.Row{At: kept, Counts: counts(2)})
}

// Messages with names of strangers count, under one name, and no name is impossible to keep.
func strangeNamesDoNotFillTheHistory[TX any](t *testing.T, s *fixture[TX]) {
	store := historian(t, s.Store)
	names := []string{"", "a\x00b", "\xff", string(make([]byte, 300))}
	for i := range 3 * history.MaxSeries {
		names = append(names, fmt.Sprint("stranger", i))
	}
	ended, end := context.WithCancel(t.Context())
	end()
	dropped := int64(1)
	for tries := 0; dropped != 0 && tries < 5; tries++ { // a busy server may take longer than a write has
		recorder, err := history.New(store, history.Config{})
		try(t, "New", err)
		for _, name := range names {
			recorder.Observe(t.Context(), waybill.Event{Kind: waybill.Published, Name: name, Transport: "orders"})
		}
		try(t, "Run", recorder.Run(ended))
		dropped = recorder.Dropped()
	}
	rows, err := store.History(t.Context(), history.Query{Since: thisMinute().Add(-time.Hour), Until: thisMinute(), BySeries: true})
	published := int64(0)
	for _, row := range rows {
		published += row.Published
	}
	if err != nil || published != int64(len(names)) || len(rows) != history.MaxSeries+1 || dropped != 0 {
		t.Errorf("%v: %d messages in %d series, %d dropped, want %d in %d", err, published, len(rows), dropped, len(names), history.MaxSeries+1)
	}
}
