package readpos

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// A claim that began before the positions were dropped must not update them: another
// worker of the process has met an error or another server.
func TestNothingOfAnEarlierTimeIsKept(t *testing.T) {
	for name, drop := range map[string]func(p *Positions, v *View){
		"an error":               func(p *Positions, _ *View) { p.Reset() },
		"another server":         func(p *Positions, _ *View) { p.ValidFor(p.Snapshot(), "2", 0) },
		"ids that went back":     func(p *Positions, _ *View) { p.ValidFor(p.Snapshot(), "1", 20) },
		"a row below the mark":   func(p *Positions, _ *View) { p.LowerWatermark(7, 5) },
		"the same, by this view": func(p *Positions, v *View) { p.ValidFor(v, "3", 0) },
	} {
		p := New(1, 64)
		first := p.Snapshot()
		if !p.ValidFor(first, "1", 1) {
			t.Fatal("the first server is refused")
		}
		p.update(first, 7, func(at *position) { at.lowWatermark = 10 })
		p.update(first, 8, func(at *position) { at.waiting = &cursor{after: 20, version: 1} })
		v := p.Snapshot()
		if !p.ValidFor(v, "1", 21) || v.buckets[7].lowWatermark != 10 || v.buckets[8].waiting == nil {
			t.Fatalf("%s: %+v before", name, v.buckets[7:9])
		}
		drop(p, v)
		p.update(v, 7, func(at *position) { at.lowWatermark, at.waiting = 30, &cursor{after: 30, version: 9} })
		if at := p.Snapshot().buckets[7]; at.lowWatermark > 4 || at.waiting != nil {
			t.Errorf("%s: %+v of a claim that began before", name, at)
		}
		if p.ValidFor(v, p.server, 0) {
			t.Errorf("%s: a view from before still holds", name)
		}
	}
}

// Only cursors of one route version are valid at a time.
func TestCursorsOfAnOlderRouteVersionAreDropped(t *testing.T) {
	p := New(1, 64)
	v := p.Snapshot()
	p.update(v, 1, func(at *position) { at.waiting = &cursor{after: 10, version: 1, routes: 4} })
	p.update(v, 2, func(at *position) { at.waiting, at.lowWatermark = &cursor{after: 1020, version: 2, routes: 5}, 3 })
	got := p.Snapshot()
	after, marks, versions := got.After()
	if got.RouteVersion() != 5 || after[1] != 0 || after[2] != 1020 || marks[2] != 3 || versions[1] != -1 || versions[2] != 2 {
		t.Errorf("route version %d, after %v, marks %v, versions %v", got.RouteVersion(), after[:3], marks[:3], versions[:3])
	}
}

func TestProbesVisitEachBucketOncePerSecond(t *testing.T) {
	p := New(1, 4)
	p.update(p.Snapshot(), 2, func(at *position) { at.lowWatermark = 9 })
	now, visited := time.Unix(1, 0), []int16{}
	for range 40 {
		now = now.Add(100 * time.Millisecond)
		if bucket, marked := p.NextProbe(now); marked {
			visited = append(visited, bucket)
		}
	}
	if !slices.Equal(visited, []int16{2}) {
		t.Errorf("marked buckets that were probed in four seconds: %v, want 2 once", visited)
	}
}

// row returns a row of bucket 0 as a claim reads it.
func row(id int64, key string, held bool) Row {
	return Row{Claimed: outbox.ClaimedRow{ID: id, Record: &waybill.Record{Key: key}}, Headers: "{}", Held: held}
}

// claimOf takes rows of bucket 0 and returns the batch and its read.
func claimOf(p *Positions, at Bucket, routes Routes, perBucket int, rows ...Row) (*Batch, Read) {
	b := NewBatch(p)
	read := b.Reads([]Bucket{at}, routes)[0]
	b.Take(rows, perBucket)
	return b, read
}

func ids(b *Batch) (all []int64) {
	for _, r := range b.Rows {
		all = append(all, r.ID)
	}
	return all
}

// The rows of a key behind a row of a blocked route are held back in every later claim.
func TestCursorKnowsTheKeysBehindAWaitingRoute(t *testing.T) {
	p, routes := New(1, 1), Routes{Version: 3, Any: true}
	b, _ := claimOf(p, Bucket{}, routes, 9, row(1, "a", true), row(2, "a", false), row(3, "b", false))
	if got := ids(b); !slices.Equal(got, []int64{3}) {
		t.Fatalf("taken: %v, want 3", got)
	}
	b.Settled(b.Rows)
	b, read := claimOf(p, Bucket{}, routes, 9, row(4, "a", false), row(5, "b", false))
	if got := ids(b); read.After != 3 || !slices.Equal(got, []int64{5}) {
		t.Errorf("read after %d, taken %v, want after 3 and 5 alone", read.After, got)
	}
	if _, read = claimOf(p, Bucket{}, Routes{Version: 4}, 9); read.After != 0 {
		t.Errorf("with the route open again rows are read after %d, want 0", read.After)
	}
}

// A claim must not cost more, the more keys wait behind a blocked route.
func TestClaimCopiesNoHeldKeys(t *testing.T) {
	allocated := map[int]float64{}
	for _, held := range []int{1, 5000} {
		p, routes := New(1, 1), Routes{Version: 3, Any: true}
		var rows []Row
		for i := range held {
			rows = append(rows, row(int64(i+1), "held "+strconv.Itoa(i), true))
		}
		claimOf(p, Bucket{}, routes, 9000, rows...)
		last, taken := int64(held), 0
		allocated[held] = testing.AllocsPerRun(10, func() {
			last++
			b, _ := claimOf(p, Bucket{}, routes, 9, row(last, "free", false))
			b.Settled(b.Rows)
			taken += len(b.Rows)
		})
		if b, _ := claimOf(p, Bucket{}, routes, 9, row(last+1, "held 0", false)); taken != 11 || len(b.Rows) != 0 {
			t.Errorf("behind %d held keys %d rows of another one were taken and %d of the first, want 11 and none", held, taken, len(b.Rows))
		}
	}
	if allocated[5000] != allocated[1] {
		t.Errorf("a claim has %v allocations behind one held key, and %v behind 5000", allocated[1], allocated[5000])
	}
}

// An unpublished row is not held back by a later row of its key that is.
func TestCursorForgetsKeysThatWaitFurtherOn(t *testing.T) {
	p, routes := New(1, 1), Routes{Version: 3, Any: true}
	b, _ := claimOf(p, Bucket{}, routes, 9, row(1, "a", true), row(2, "k", false), row(3, "k", true))
	b.Settled(nil)
	b, read := claimOf(p, Bucket{}, routes, 9, row(2, "k", false), row(3, "k", true))
	if got := ids(b); read.After != 1 || !slices.Equal(got, []int64{2}) {
		t.Errorf("read after %d, taken %v, want after 1 and 2", read.After, got)
	}
}

// The low watermark stays below the lowest row that was not published.
func TestMarkStopsBelowTheLowestRowLeft(t *testing.T) {
	p := New(1, 1)
	b, _ := claimOf(p, Bucket{}, Routes{}, 9, row(1001, "a", false), row(1002, "b", false), row(1003, "c", false), row(1004, "d", false))
	b.Settled([]outbox.ClaimedRow{b.Rows[0], b.Rows[2]})
	if _, read := claimOf(p, Bucket{}, Routes{}, 9); read.After != 1001 {
		t.Errorf("read after %d, want 1001: rows 1002 and 1004 are left", read.After)
	}
}

// A key that fills a batch is left out of every other read, until no other key has rows.
func TestHotKeyIsPassedEveryOtherTime(t *testing.T) {
	p := New(1, 1)
	b, _ := claimOf(p, Bucket{}, Routes{}, 2, row(1001, "hot", false), row(1002, "hot", false))
	b.Settled(b.Rows)
	b, read := claimOf(p, Bucket{}, Routes{}, 2, row(1009, "cold", false))
	if read != (Read{After: 1002, Skip: "hot"}) {
		t.Errorf("the second read is %+v, want after 1002 without the hot key", read)
	}
	b.Settled(b.Rows)
	b, read = claimOf(p, Bucket{}, Routes{}, 2, row(1003, "hot", false), row(1004, "hot", false))
	if read != (Read{After: 1002}) {
		t.Errorf("the third read is %+v, want after 1002 with the hot key", read)
	}
	b.Settled(b.Rows)
	b = NewBatch(p)
	if reads := b.Reads([]Bucket{{}}, Routes{}); reads[0] != (Read{After: 1009, Skip: "hot"}) {
		t.Errorf("the fourth read is %+v, want after 1009 without the hot key", reads[0])
	}
	if again := b.Take([]Row{{None: true}}, 2); !again {
		t.Error("again = false: no other key had rows, and the hot key's are not read at once")
	}
	if _, read = claimOf(p, Bucket{}, Routes{}, 2); read != (Read{After: 1004}) {
		t.Errorf("the read after that is %+v, want after 1004 with the hot key", read)
	}
}
