package waymysql

import (
	"maps"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/internal/lane"
)

// served is what the relays of this process know of a lane.
type served struct {
	*lane.Lane
	horizon horizon
	backlog backlog
}

// Forget drops what is remembered of the lane.
func (l *served) Forget() {
	l.Lane.Forget()
	l.horizon.forget()
	l.backlog.forget()
}

// A horizon is up to which id the rows of a lane are gone, so that a claim need
// not look for them in every bucket. It is shared by the workers of a process,
// and like marks it only saves reading.
type horizon struct{ sight atomic.Pointer[sight] }

// A sight is what is known of a lane at one moment. It is not changed.
//
// Buckets share their ids, and a transaction that commits late has a low one. So
// the horizon moves up to ids for which every bucket's gate was seen free after
// they were given: by then each is committed or was rolled back. Rows without a
// key, and unserialized ones, pass no gate. They are looked for beyond the horizon alone
// most of the time, and from their start once a second.
type sight struct {
	at       int64          // rows at or below it are gone, but for those of open buckets
	open     map[int16]bool // buckets to look at one by one
	next     int64          // the table's next id in the last survey
	until    int64          // the same in the survey before the first that asked for the gates that are busy
	busy     map[int16]bool // buckets whose gate has not been seen free since
	behind   bool           // so many ids were given beyond at that looks cost something
	surveyed time.Time
	started  time.Time // when a survey last looked at starts
	turn     int16     // the bucket that the next survey looks at from its start
}

const (
	// surveyEvery bounds how long a row that needs no gate waits, without a key or
	// unserialized, that was committed after one with a higher id.
	surveyEvery = time.Second
	// surveyBehind is how often the horizon is moved while there is much beyond it.
	surveyBehind = surveyEvery / 10
	// maxNews is how many rows beyond the horizon are read.
	maxNews = 1000
	// maxLag is how many ids the horizon stays behind for the sake of rows that
	// remain, or of a transaction that does: their buckets are open then.
	maxLag = 50_000
)

// A place is where a row of the lane is.
type place struct {
	bucket int16
	id     int64
}

// found is what a look at the outbox has found.
type found struct {
	at      time.Time
	survey  bool
	starts  bool            // surveys: also from the start of buckets
	free    []int16         // surveys: buckets whose gates were free, before the look
	start   int64           // surveys: the first id of the bucket whose turn it is
	server  string          // who answers
	buckets int             // that there are
	next    int64           // the table's next id
	news    []place         // rows beyond the horizon, of buckets that are not open, by id
	first   map[int16]int64 // of open buckets that have rows: the first id, or the last where some wait
	read    int             // how many rows beyond the horizon were read, also such as are in no bucket
	last    int64           // the last of them
	paused  bool
}

func (h *horizon) forget() { h.sight.Store(&sight{}) }

func (h *horizon) load() *sight {
	h.sight.CompareAndSwap(nil, &sight{})
	return h.sight.Load()
}

// learn replaces old, unless something else has: what was forgotten meanwhile, or
// is to be looked at again, must not come back.
func (h *horizon) learn(old, s *sight) {
	if s.at != old.at || s.surveyed != old.surveyed || !maps.Equal(s.open, old.open) {
		h.sight.CompareAndSwap(old, s)
	}
}

// reopen makes claims look at a bucket that has a row at first, which may have
// been written without the gate.
func (h *horizon) reopen(bucket int16, first int64) {
	for {
		old := h.load()
		if first > old.at || old.open[bucket] {
			return
		}
		s := *old
		s.open = maps.Clone(old.open)
		s.open[bucket] = true
		if h.sight.CompareAndSwap(old, &s) {
			return
		}
	}
}

// due reports whether it is time for a survey, and whether for one that also
// looks at the start of buckets, where it may have to read what is not purged.
// The first two follow each other at once.
func (s *sight) due(now time.Time) (survey, starts bool) {
	every := surveyEvery
	if s.behind {
		every = surveyBehind
	}
	survey = s.until == 0 && len(s.busy) == 0 || now.Sub(s.surveyed) >= every
	return survey, survey && now.Sub(s.started) >= surveyEvery
}

// with returns s and what a look from it has found.
func (s *sight) with(f found, buckets int) *sight {
	n := *s
	n.open, n.busy = maps.Clone(s.open), maps.Clone(s.busy)
	if n.open == nil {
		n.open, n.busy = map[int16]bool{}, map[int16]bool{}
	}
	if f.survey {
		if n.settled() {
			n.until = s.next
			for b := range int16(buckets) {
				n.busy[b] = true
			}
		}
		for _, b := range f.free {
			delete(n.busy, b)
		}
		n.surveyed, n.next = f.at, f.next
	}
	if f.starts {
		n.started, n.turn = f.at, (s.turn+1)%int16(buckets)
	}
	for b := range s.open {
		if f.first[b] == 0 && !n.busy[b] {
			delete(n.open, b)
		}
	}
	if f.start > 0 && f.start <= n.at {
		n.open[s.turn] = true
	}
	for b, first := range f.first { // what has passed no gate, and was committed late
		if (b == lane.Unkeyed || lane.Unserialized(b)) && first <= n.at {
			n.open[b] = true
		}
	}
	far, all := f.next-n.at > maxLag, f.read < maxNews
	if far {
		maps.Copy(n.open, n.busy)
	}
	if far || !all {
		for _, row := range f.news {
			n.open[row.bucket] = true
		}
	}
	n.behind = f.next-n.at > maxNews
	if !n.settled() {
		return &n
	}
	to := n.until - 1
	for _, row := range f.news {
		if !n.open[row.bucket] {
			to = min(to, row.id-1)
			break
		}
	}
	if !all {
		to = min(to, f.last)
	}
	n.at = max(n.at, to)
	return &n
}

// settled reports whether all ids below until are committed or rolled back, open
// buckets aside.
func (s *sight) settled() bool {
	for b := range s.busy {
		if !s.open[b] {
			return false
		}
	}
	return true
}
