package waymysql

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/outbox"
)

// A world is an outbox with its gates, and two workers that look at it.
type world struct {
	rand    *rand.Rand
	next    int64
	live    []place // committed, by id
	open    []*writer
	horizon horizon
	workers [2]struct {
		known *sight
		f     found
	}
}

// A writer is a transaction that holds the gate of a bucket.
type writer struct {
	bucket int16
	rows   []place
}

const worldBuckets = 6

func (w *world) busy(bucket int16) bool {
	return slices.ContainsFunc(w.open, func(tx *writer) bool { return tx.bucket == bucket })
}

// step lets one thing happen.
func (w *world) step() {
	switch n := w.rand.IntN(100); {
	case n < 15:
		if bucket := int16(w.rand.IntN(worldBuckets)); !w.busy(bucket) {
			w.open = append(w.open, &writer{bucket: bucket})
		}
	case n < 35 && len(w.open) > 0:
		tx, rows := w.open[w.rand.IntN(len(w.open))], 1
		switch w.rand.IntN(40) {
		case 0, 1, 2:
			rows = maxNews / 2
		case 3:
			w.next += maxLag / 2
		}
		for range rows {
			tx.rows = append(tx.rows, place{tx.bucket, w.next})
			w.next++
		}
	case n < 50 && len(w.open) > 0:
		i := w.rand.IntN(len(w.open))
		if w.rand.IntN(5) > 0 {
			w.live = append(w.live, w.open[i].rows...)
			slices.SortFunc(w.live, func(a, b place) int { return int(a.id - b.id) })
		}
		w.open = slices.Delete(w.open, i, i+1)
	case n < 65 && len(w.live) > 0: // some are relayed
		i := w.rand.IntN(len(w.live))
		w.live = slices.Delete(w.live, i, min(i+w.rand.IntN(300), len(w.live)))
	default:
		w.look(w.rand.IntN(2), w.rand.IntN(3) == 0)
	}
}

// look lets a worker do the next of three things: take what is known, ask for
// gates; look; learn.
func (w *world) look(i int, survey bool) {
	switch me := &w.workers[i]; {
	case me.known == nil:
		me.known, me.f = w.horizon.load(), found{survey: survey, starts: survey && w.rand.IntN(2) == 0, at: time.Unix(0, w.rand.Int64())}
		for b := range int16(worldBuckets) {
			if survey && !w.busy(b) {
				me.f.free = append(me.f.free, b)
			}
		}
	case me.f.first == nil:
		me.f.first, me.f.next = map[int16]int64{}, w.next
		for _, row := range w.live {
			if row.id > me.known.at && !me.known.open[row.bucket] && me.f.read < maxNews {
				me.f.news, me.f.read, me.f.last = append(me.f.news, row), me.f.read+1, row.id
			}
			if me.known.open[row.bucket] && me.f.first[row.bucket] == 0 {
				me.f.first[row.bucket] = row.id
			}
			if me.f.starts && row.bucket == me.known.turn && me.f.start == 0 {
				me.f.start = row.id
			}
		}
	default:
		w.horizon.learn(me.known, me.known.with(me.f, worldBuckets))
		me.known = nil
	}
}

// check returns what would be overlooked: a row that is there, or may yet be.
func (w *world) check() error {
	s := w.horizon.load()
	rows := slices.Clone(w.live)
	for _, tx := range w.open {
		rows = append(rows, tx.rows...)
	}
	for _, row := range rows {
		if row.id <= s.at && !s.open[row.bucket] {
			return fmt.Errorf("row %+v is overlooked: %+v", row, *s)
		}
	}
	return nil
}

// Whatever happens between what two workers do, the horizon passes no row of a
// bucket that is not looked at for itself; and once all is gone it passes all.
func TestHorizonOverlooksNothing(t *testing.T) {
	t.Parallel()
	moved := 0
	for seed := range uint64(300) {
		w := &world{rand: rand.New(rand.NewPCG(seed, 0)), next: 1}
		for n := range 1000 {
			w.step()
			if err := w.check(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, n, err)
			}
		}
		if w.horizon.load().at > 0 {
			moved++
		}
		w.open, w.live = nil, nil
		for range 30 {
			w.look(0, true)
		}
		if s := w.horizon.load(); s.at != w.next-1 || len(s.open) > 0 {
			t.Errorf("seed %d: with nothing left the horizon is %d, want %d; open %v", seed, s.at, w.next-1, s.open)
		}
	}
	t.Logf("the horizon moved in %d of 300 runs", moved)
}

// What is behind more rows than are read at once is not passed over, although
// its id was given before the last survey.
func TestHorizonEndsWithWhatWasRead(t *testing.T) {
	t.Parallel()
	w := &world{rand: rand.New(rand.NewPCG(1, 1)), next: 1}
	for range 7 {
		w.look(0, true)
	}
	// The gates have been asked for, the next id not yet.
	many, one := &writer{bucket: 1}, &writer{bucket: 2}
	for range maxNews + 100 {
		many.rows = append(many.rows, place{1, w.next})
		w.next++
	}
	one.rows = append(one.rows, place{2, w.next})
	w.next++
	w.open = []*writer{many, one}
	for range 2 {
		w.look(0, true)
	}
	w.open, w.live = nil, append(many.rows, one.rows...)
	for range 6 {
		w.look(0, true)
		if err := w.check(); err != nil {
			t.Fatal(err)
		}
	}
}

// A row that was written without the gate, and is below the horizon, is found
// when its bucket is looked at from its start.
func TestHorizonComesBackToEveryBucket(t *testing.T) {
	t.Parallel()
	w := &world{rand: rand.New(rand.NewPCG(1, 1)), next: 10}
	for range 9 {
		w.look(0, true)
	}
	w.live = []place{{4, 5}}
	for range 12 * worldBuckets {
		w.look(0, true)
	}
	if s := w.horizon.load(); s.at < 5 || !s.open[4] {
		t.Errorf("the horizon is %d, open %v", s.at, s.open)
	}
}

// A worker that has looked before all was forgotten, or before a bucket was to be
// looked at again, brings nothing back.
func TestHorizonKeepsNothingOfAnEarlierTime(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(h *horizon){
		"forgotten": (*horizon).forget,
		"reopened":  func(h *horizon) { h.reopen(3, 5) },
	} {
		w := &world{rand: rand.New(rand.NewPCG(1, 1)), next: 10}
		for range 6 {
			w.look(0, true)
		}
		w.next = 20
		for range 5 { // all but the learning
			w.look(0, true)
		}
		meanwhile(&w.horizon)
		before := w.horizon.load()
		w.look(0, true)
		if now := w.horizon.load(); now != before {
			t.Errorf("%s: the horizon is %+v after a look from before", name, *now)
		}
	}
}

// Rows in the way, and gates that are held, do not keep the horizon back for
// ever: their buckets are looked at for themselves.
func TestHorizonGoesOnWithoutWhatStays(t *testing.T) {
	t.Parallel()
	w := &world{rand: rand.New(rand.NewPCG(1, 1)), next: 10, live: []place{{2, 5}, {lane.Unkeyed, 6}}, open: []*writer{{3, []place{{3, 7}}}}}
	for range 12 {
		w.look(0, true)
	}
	if s := w.horizon.load(); s.at >= 5 {
		t.Errorf("the horizon is %d already", s.at)
	}
	w.next += 2 * maxLag
	for range 12 {
		w.look(0, true)
	}
	if s := w.horizon.load(); s.at != w.next-1 || !s.open[2] || !s.open[3] || !s.open[lane.Unkeyed] || len(s.open) != 3 {
		t.Errorf("the horizon is %d, open %v", s.at, s.open)
	}
}

// An unserialized row has passed no gate: the horizon may be beyond it when it is
// committed. The next survey, which looks up the first row of each of these
// buckets, has its bucket looked at until the row is gone.
func TestHorizonComesBackToUnserializedRows(t *testing.T) {
	t.Parallel()
	const bucket = outbox.Unserialized + 2
	w := &world{rand: rand.New(rand.NewPCG(1, 1)), next: 10}
	for range 9 {
		w.look(0, true)
	}
	s := w.horizon.load()
	if s.at != 9 {
		t.Fatalf("the horizon is %d, want 9", s.at)
	}
	look := func(f found) {
		f.next = w.next
		s = s.with(f, worldBuckets)
	}
	look(found{survey: true, first: map[int16]int64{bucket: 5}})
	if !s.open[bucket] {
		t.Errorf("open are %v after a survey that has found the row", s.open)
	}
	look(found{first: map[int16]int64{bucket: 5}})
	if !s.open[bucket] {
		t.Errorf("open are %v while it is there", s.open)
	}
	look(found{first: map[int16]int64{}})
	if s.open[bucket] {
		t.Errorf("open are %v when it is gone", s.open)
	}
	look(found{survey: true, first: map[int16]int64{bucket: 12}})
	if s.open[bucket] {
		t.Errorf("open are %v for a row beyond the horizon", s.open)
	}
}

// While many ids lie beyond the horizon each look reads many rows: then it is
// moved soon. What may have to read all that is not purged stays rare.
func TestHorizonFollowsABacklogSoon(t *testing.T) {
	now := time.Unix(1000, 0)
	var free []int16
	for b := range int16(64) {
		free = append(free, b)
	}
	s := &sight{}
	starts, surveys := 0, 0
	for i := range int64(200) { // 10 ms and 100 ids apart
		now = now.Add(10 * time.Millisecond)
		f := found{at: now, next: 100_000 + 100*i, first: map[int16]int64{}, read: maxNews, last: s.at + maxNews}
		if f.survey, f.starts = s.due(now); f.survey {
			f.free, surveys = free, surveys+1
		}
		if f.starts {
			starts++
		}
		if s.at > 99_000 {
			f.read, f.last = 0, 0 // all of them are of open buckets
		}
		s = s.with(f, 64)
		if i > 150 && f.next-s.at > 2500 {
			t.Fatalf("look %d: the horizon is at %d, and the next id %d", i, s.at, f.next)
		}
	}
	if starts > 3 || surveys < 15 {
		t.Errorf("%d surveys in 2 s, %d of them of starts, want 20 and 2", surveys, starts)
	}
}
