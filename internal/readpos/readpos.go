// Package readpos keeps read positions: behind which ids the relays of one process
// have nothing left to read in the buckets of one transport. It decides which rows
// of a claim may be published and keeps what the claim has learned, whatever
// database the rows are in. A position only saves reading: dropped, it comes back
// from the tables.
package readpos

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"
)

// MaxBuckets is how many buckets a claim takes: enough keys to publish in
// parallel, and enough buckets left for other relays.
const MaxBuckets = 32

// Positions are those of one transport. They are safe for concurrent use.
type Positions struct {
	Transport int16
	// Margin is how many ids below a mark are read again each time; New sets 512. A
	// sequence that was set back by hand, to the highest id that a script has seen, say,
	// gives ids below marks to new rows; they come in order if it was set back by no more
	// than this. A next id that is lower than a mark shows the same (ValidFor), unless new
	// rows have caught up with the mark before the next look.
	Margin int64

	mu      sync.Mutex
	epoch   int        // counts how often everything was dropped
	turn    int        // where the next claim begins to look
	buckets []position // by bucket
	server  string     // whose ids they are
	next    int64      // its next id, as of the last look; 0 if it is not known
	raised  time.Time  // when marks were last raised to it
	probed  time.Time  // when the last bucket was probed from its start
	probe   int        // the bucket that is next
	ended   time.Time  // when stuck sessions were last looked for
	kept    time.Time  // when upkeep was last done
}

// A position is how far one bucket was read.
type position struct {
	mark    int64   // low watermark: at or below it there are no rows
	waiting *cursor // rows between mark and it wait; nil where none does
	past    *cursor // beside a hot key; nil where there is none
	turn    bool    // the next read of a bucket with a hot key goes past it
}

// start returns behind which id to read a bucket in which nothing waits.
func (at *position) start(margin int64) int64 { return max(at.mark-margin, 0) }

// A cursor lets a claim begin behind rows that wait. It holds while the versions
// are those of the bucket and of the transport's blocked routes. It is not changed
// once it is kept.
type cursor struct {
	after   int64
	version int64
	routes  int64
	behind  map[uint64]bool // keys, hashed, with a row of a waiting route at or below after
	skip    string          // the hot key that is passed over; empty in waiting
}

var seed = maphash.MakeSeed()

// hashOf stands for a key in a cursor: a collision makes a key wait for a route
// that is not its own, and nothing worse.
func hashOf(key string) uint64 { return maphash.String(seed, key) }

// New returns positions of which nothing is known.
func New(transport int16, buckets int) *Positions {
	return &Positions{Transport: transport, Margin: 512, buckets: make([]position, buckets)}
}

// Buckets returns how many there are.
func (p *Positions) Buckets() int { return len(p.buckets) }

// A View is the state of positions at one moment. What a claim learns is kept only
// if nothing was dropped since.
type View struct {
	Turn    int // the bucket to begin with
	margin  int64
	epoch   int
	next    int64
	buckets []position
}

// After returns, by bucket, behind which id to look for rows: at the cursors, which
// hold for the versions, and at the marks.
func (v *View) After() (cursors, marks, versions []int64) {
	n := len(v.buckets)
	cursors, marks, versions = make([]int64, n), make([]int64, n), make([]int64, n)
	for b, at := range v.buckets {
		start := at.start(v.margin)
		cursors[b], marks[b], versions[b] = start, start, -1
		if c := at.waiting; c != nil {
			cursors[b], versions[b] = max(at.mark, c.after), c.version
		}
	}
	return cursors, marks, versions
}

// RouteVersion is that of the cursors.
func (v *View) RouteVersion() int64 {
	for _, at := range v.buckets {
		if at.waiting != nil {
			return at.waiting.routes
		}
	}
	return 0
}

// Reset drops all positions. Every error does: after it nothing is known of what
// was committed.
func (p *Positions) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
}

// drop is Reset with mu held.
func (p *Positions) drop() {
	p.epoch++
	p.next = 0
	clear(p.buckets)
}

// Snapshot returns the positions of now, and the next turn.
func (p *Positions) Snapshot() *View {
	p.mu.Lock()
	defer p.mu.Unlock()
	newest := int64(0)
	for _, at := range p.buckets {
		if at.waiting != nil {
			newest = max(newest, at.waiting.routes)
		}
	}
	for b, at := range p.buckets {
		if at.waiting != nil && at.waiting.routes < newest {
			p.buckets[b].waiting = nil // it cannot hold any more
		}
	}
	p.turn++
	turn := p.turn * 17 % len(p.buckets) // 17: neighbours in time are not neighbours in place
	return &View{Turn: turn, margin: p.Margin, epoch: p.epoch, next: p.next, buckets: slices.Clone(p.buckets)}
}

// ValidFor reports whether v still holds for the server and table that answer, which
// server identifies and whose next id is next (0 if it is not known). Others than
// before give the same ids to other rows, and so do ids that went back: then all
// positions are dropped.
func (p *Positions) ValidFor(v *View, server string, next int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != server || next > 0 && next <= v.highest() {
		if p.server != "" {
			p.drop()
		}
		p.server = server
	}
	p.next = next
	return v.epoch == p.epoch
}

// highest returns the highest id that was read.
func (v *View) highest() (id int64) {
	for _, at := range v.buckets {
		id = max(id, at.mark)
		for _, c := range []*cursor{at.waiting, at.past} {
			if c != nil {
				id = max(id, c.after)
			}
		}
	}
	return id
}

// update changes a bucket's position, unless all was dropped since v.
func (p *Positions) update(v *View, bucket int16, change func(*position)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.epoch == p.epoch {
		change(&p.buckets[bucket])
	}
}

// NextProbe returns the bucket to read from its start, one each second, in case
// something was written below its positions by a program that takes no locks.
// marked is false where nothing can be below.
func (p *Positions) NextProbe(now time.Time) (bucket int16, marked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.probed) < time.Second {
		return 0, false
	}
	p.probed = now
	p.probe = (p.probe + 1) % len(p.buckets)
	at := &p.buckets[p.probe]
	at.waiting, at.past = nil, nil
	return int16(p.probe), at.mark > 0
}

// LowerWatermark moves a mark back at or below which a row was found. Claims that
// are under way have not seen that row, and must not move the mark over it again.
func (p *Positions) LowerWatermark(bucket int16, first int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first <= p.buckets[bucket].mark {
		p.buckets[bucket].mark = first - 1
		p.epoch++
	}
}

// Maintained notes that upkeep is done now.
func (p *Positions) Maintained(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = now
}

// MaintenanceDue reports whether upkeep was not done for so long.
func (p *Positions) MaintenanceDue(now time.Time, after time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.kept) >= after
}

// StuckCheckDue reports, once in every so often, that it is time to end sessions
// that are stuck.
func (p *Positions) StuckCheckDue(now time.Time, every time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.ended) < every {
		return false
	}
	p.ended = now
	return true
}
