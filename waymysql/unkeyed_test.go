package waymysql

import "testing"

// A search for held rows takes several batches. When routes change between them, rows
// that it has passed may be free.
func TestLookForHeldRowsBeginsAnewWhenRoutesChange(t *testing.T) {
	var p unkeyedState
	batch := make([]int64, releaseBatch)
	batch[releaseBatch-1] = 5000
	for _, step := range []struct {
		version int64
		found   []int64
		done    bool
		from    int64
	}{
		{version: 7, found: batch},
		{version: 7, found: batch, from: 5000},
		{version: 8, found: batch},
		{version: 8, found: []int64{6000}, from: 5000},
		{version: 8, done: true},
		{version: 9},
		{version: 9, done: true},
	} {
		if done, from := p.readFrom(step.version); done != step.done || from != step.from {
			t.Errorf("look(%d) = %v, %d, want %v, %d", step.version, done, from, step.done, step.from)
		}
		p.readDone(step.version, step.found)
	}
}
