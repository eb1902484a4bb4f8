package readpos

import (
	"testing"
	"time"
)

// Rows without a key are read from a margin below the last row, and from the start at
// intervals: then rows of a late commit are found, wherever their ids are.
func TestUnkeyedIsReadFromTheStartAtIntervals(t *testing.T) {
	var p Unkeyed
	now := time.Now()
	after := func(passed time.Duration, want int64) {
		t.Helper()
		now = now.Add(passed)
		if got := p.After(now); got != want {
			t.Errorf("After = %d, want %d", got, want)
		}
	}
	after(0, 0)
	p.Read(50_000)
	after(time.Millisecond, 50_000-unkeyedMargin)
	after(unkeyedPause, 0)
	after(time.Millisecond, 50_000-unkeyedMargin)
	p.Took(0, 100*time.Millisecond) // a slow read from the start: the next is later
	after(unkeyedPause, 50_000-unkeyedMargin)
	after(unkeyedShare*100*time.Millisecond, 0)
	p.Took(0, time.Minute)
	after(unkeyedLongest, 0)
	p.Again()
	after(0, 0)
	p.Read(10)
	after(time.Millisecond, 0)
}
