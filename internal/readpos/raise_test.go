package readpos

import (
	"slices"
	"testing"
	"time"
)

// Marks follow the ids that other processes have used, but never past the next id of an
// earlier look, and not once the positions were dropped.
func TestMarksOfEmptyBucketsAreRaised(t *testing.T) {
	p, now := New(1, 4), time.Unix(100, 0)
	p.ValidFor(p.Snapshot(), "s", 1)
	p.update(p.Snapshot(), 2, func(at *position) { at.lowWatermark = 15_000 })
	if got := p.Behind(p.Snapshot(), now); got != nil {
		t.Errorf("behind the first ids: %v, want none", got)
	}
	p.ValidFor(p.Snapshot(), "s", 20_001)
	v := p.Snapshot()
	behind := p.Behind(v, now)
	if !slices.Equal(behind, []int16{0, 1, 3}) {
		t.Errorf("far behind: %v, want 0, 1 and 3", behind)
	}
	if got := p.Behind(v, now.Add(999*time.Millisecond)); got != nil {
		t.Errorf("again within a second: %v", got)
	}
	p.ValidFor(p.Snapshot(), "s", 30_000) // a later look, of another worker
	p.Raise(v, []int16{0, 3})
	p.Reset()
	p.Raise(v, []int16{1})
	if got := p.Snapshot().buckets[1].lowWatermark; got != 0 {
		t.Errorf("a mark was raised to %d after all positions were dropped", got)
	}

	p = New(1, 2)
	p.ValidFor(p.Snapshot(), "s", 20_001)
	v = p.Snapshot()
	p.ValidFor(p.Snapshot(), "s", 30_000)
	p.Raise(v, []int16{0})
	p.update(v, 1, func(at *position) { at.lowWatermark = 25_000 })
	p.Raise(v, []int16{1})
	if at := p.Snapshot().buckets; at[0].lowWatermark != 20_000 || at[1].lowWatermark != 25_000 {
		t.Errorf("marks %d and %d, want 20000 and 25000", at[0].lowWatermark, at[1].lowWatermark)
	}
}
