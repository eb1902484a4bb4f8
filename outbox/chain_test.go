package outbox

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
)

var (
	errRefused = errors.New("refused")
	errOutage  = fmt.Errorf("broken pipe: %w", waybill.ErrUnavailable)
)

var anyRow = rapid.Custom(func(t *rapid.T) ClaimedRow {
	rec := &waybill.Record{Key: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "key")}
	if rapid.IntRange(0, 9).Draw(t, "unreadable") == 0 {
		rec.Problem = errRefused
	}
	return ClaimedRow{Record: rec}
})

// Whatever the broker answers and in whatever order: one unconfirmed record a
// key, keys in row order, nothing after a failure of its key, nothing at all
// after an outage; and the outcome says exactly what was answered.
func TestChainsKeepKeysInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfN(anyRow, 0, 30).Draw(t, "rows")
		for i := range rows {
			rows[i].ID = int64(i)
		}
		window := rapid.IntRange(1, 12).Draw(t, "window")
		c := newChains(rows, false, nil)
		var open []int
		published, failed := map[int]bool{}, map[int]bool{}
		keyFailed, last, outage := map[string]bool{}, map[string]int{}, false
		for i, row := range rows { // rows that cannot be read fail by themselves
			failed[i] = row.Record.Problem != nil
		}
		for {
			least := 0
			if len(open) == 0 {
				least = 1
			}
			items := c.take(rapid.IntRange(least, window-len(open)).Draw(t, "take"), nil)
			if len(open)+len(items) == 0 {
				break
			}
			for _, item := range items {
				key := rows[item.Seq].Record.Key
				switch {
				case outage:
					t.Fatalf("row %d was handed out after an outage", item.Seq)
				case published[item.Seq] || failed[item.Seq] || slices.Contains(open, item.Seq):
					t.Fatalf("row %d was handed out again, or cannot be read", item.Seq)
				}
				if key != "" {
					if keyFailed[key] {
						t.Fatalf("row %d was handed out after a failure of its key %s", item.Seq, key)
					}
					if before, ok := last[key]; ok && before > item.Seq {
						t.Fatalf("row %d of key %s was handed out after row %d", item.Seq, key, before)
					}
					for _, i := range open {
						if rows[i].Record.Key == key {
							t.Fatalf("rows %d and %d of key %s are unconfirmed at once", i, item.Seq, key)
						}
					}
					for i := range item.Seq {
						if rows[i].Record.Key == key && !published[i] {
							t.Fatalf("row %d of key %s was handed out, and row %d is not published", item.Seq, key, i)
						}
					}
					last[key] = item.Seq
				}
				open = append(open, item.Seq)
			}
			if c.open != len(open) {
				t.Fatalf("%d are open, the chains say %d", len(open), c.open)
			}
			i := rapid.IntRange(0, len(open)-1).Draw(t, "answered")
			seq := open[i]
			open = slices.Delete(open, i, i+1)
			err := rapid.SampledFrom([]error{nil, nil, nil, nil, errRefused, errOutage}).Draw(t, "answer")
			c.done(Result{seq, err})
			switch {
			case err == nil:
				published[seq] = true
			case errors.Is(err, waybill.ErrUnavailable):
				outage = true
			default:
				failed[seq] = true
				keyFailed[rows[seq].Record.Key] = true
			}
		}
		done, fails := c.finished()
		for _, row := range done {
			if !published[int(row.ID)] {
				t.Fatalf("row %d counts as published and is not", row.ID)
			}
			delete(published, int(row.ID))
		}
		if len(published) > 0 {
			t.Fatalf("published rows %v are missing", published)
		}
		for _, f := range fails {
			if !failed[int(f.Row.ID)] || !errors.Is(f.Err, errRefused) {
				t.Fatalf("row %d counts as refused with %v and was not", f.Row.ID, f.Err)
			}
			delete(failed, int(f.Row.ID))
		}
		for i, refused := range failed {
			if key := rows[i].Record.Key; refused && (key == "" || rows[i].Record.Problem == nil) {
				t.Fatalf("refused row %d is missing", i)
			}
		}
		if got := c.outage() != nil; got != outage {
			t.Fatalf("outage = %t, want %t", got, outage)
		}
		if !outage {
			for i, row := range rows { // what is left waits behind a failure
				if s := c.state[i]; s == waiting && (row.Record.Key == "" || !slices.ContainsFunc(fails, func(f Failure) bool { return f.Row.Record.Key == row.Record.Key && f.Row.ID < row.ID })) {
					t.Fatalf("row %d of key %q was not handed out, and nothing of its key failed", i, row.Record.Key)
				}
			}
		}
	})
}

func seqs(items []Item) []int {
	var all []int
	for _, item := range items {
		all = append(all, item.Seq)
	}
	return all
}

func rowsOf(keys ...string) []ClaimedRow {
	var rows []ClaimedRow
	for i, key := range keys {
		rows = append(rows, ClaimedRow{ID: int64(i), Record: &waybill.Record{Key: key}})
	}
	return rows
}

func TestRowsWithoutKeyGoAllAtOnce(t *testing.T) {
	if got := seqs(newChains(rowsOf("", "", ""), false, nil).take(9, nil)); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("ready %v, want all", got)
	}
	if got := seqs(newChains(rowsOf("a", "b", "", "a", "b"), false, nil).take(9, nil)); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("ready %v, want the heads and what has no key", got)
	}
}

func TestAtomicBatchGoesAllAtOnce(t *testing.T) {
	if got := seqs(newChains(rowsOf("a", "a", "", "b", "a"), true, nil).take(9, nil)); !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
		t.Errorf("ready %v, want all in order", got)
	}
}

// With Pipelined, whatever the broker answers: a row of a key goes with the one
// before it, in the same call and the same stream, or after its confirmation.
func TestPipelinedChainsKeepKeysInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfN(anyRow, 0, 30).Draw(t, "rows")
		for i := range rows {
			rows[i].ID = int64(i)
			rows[i].Record.Name = rapid.SampledFrom([]string{"s", "t"}).Draw(t, "stream")
		}
		c := newChains(rows, false, nil)
		c.stream = func(rec *waybill.Record) string { return rec.Name }
		published, open, calls := map[int]bool{}, []int{}, map[int]int{}
		together, refused := 0, map[string]bool{}
		for call := 1; ; call++ {
			items := c.take(rapid.IntRange(1, 40).Draw(t, "take"), nil)
			if len(items)+len(open) == 0 {
				break
			}
			for _, item := range items {
				key := rows[item.Seq].Record.Key
				if calls[item.Seq] > 0 || rows[item.Seq].Record.Problem != nil {
					t.Fatalf("row %d was handed out again, or cannot be read", item.Seq)
				}
				calls[item.Seq], open = call, append(open, item.Seq)
				if key == "" {
					continue
				}
				if refused[key] {
					t.Fatalf("row %d was handed out after a failure of its key", item.Seq)
				}
				before := item.Seq - 1
				for before >= 0 && rows[before].Record.Key != key {
					before--
				}
				switch {
				case before < 0 || published[before]:
				case calls[before] == call && rows[before].Record.Name == rows[item.Seq].Record.Name:
					together++
				default:
					t.Fatalf("row %d of key %s was handed out in call %d, and row %d was in call %d and is not published", item.Seq, key, call, before, calls[before])
				}
			}
			n := rapid.IntRange(0, len(open)-1).Draw(t, "answered")
			i := open[n]
			open = slices.Delete(open, n, n+1)
			if rapid.IntRange(0, 9).Draw(t, "answer") == 0 {
				c.done(Result{i, errRefused})
				refused[rows[i].Record.Key] = rows[i].Record.Key != ""
			} else {
				c.done(Result{i, nil})
				published[i] = true
			}
		}
		done, _ := c.finished()
		if len(done) != len(published) {
			t.Fatalf("%d rows are published, want %d", len(done), len(published))
		}
	})
}

// What may go together does.
func TestPipelinedChainsHandOutAKeyAtOnce(t *testing.T) {
	rows := make([]ClaimedRow, 5)
	for i := range rows {
		rows[i] = ClaimedRow{ID: int64(i), Record: &waybill.Record{Key: "k", Name: "s"}}
	}
	rows[3].Record.Name = "t"
	c := newChains(rows, false, nil)
	c.stream = func(rec *waybill.Record) string { return rec.Name }
	if got := len(c.take(10, nil)); got != 3 {
		t.Errorf("%d rows were handed out at once, want the 3 in front of another stream", got)
	}
}
