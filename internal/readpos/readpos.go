// Package readpos keeps the read positions of one process: the ids in the buckets of
// one transport up to which a relay has no rows to read. It decides which rows of a
// claim may be published, and advances the positions, for every kind of database. A
// position only saves reading: after a reset it is found again from the tables.
package readpos

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"
)

// MaxBuckets is how many buckets a claim locks at most: enough keys to publish in
// parallel, and enough buckets left for other relays.
const MaxBuckets = 32

// Positions are the read positions of one transport. They are safe for concurrent use.
type Positions struct {
	Transport int16
	Unkeyed   Unkeyed

	mu      sync.Mutex
	epoch   int        // counts resets
	turn    int        // counts snapshots, and selects the first bucket of a claim
	buckets []position // by bucket
	server  string     // the server that assigned the ids
	next    int64      // its next id, as of the last claim; 0 if unknown
	raised  time.Time  // time of the last Behind with a result
	probed  time.Time  // time of the last probe
	probe   int        // the bucket probed last
}

// A position is the read position of one bucket.
type position struct {
	lowWatermark int64   // no rows at or below it
	waiting      *cursor // behind blocked rows above lowWatermark; nil if there are none
	past         *cursor // of reads without the hot key; nil if there is none
	turn         bool    // the next read is one without the hot key
}

// A cursor lets a claim begin behind blocked rows. It is valid while version is that
// of the bucket and routes is that of the transport's blocked routes. A stored cursor
// is immutable, but for held, which it shares with those that continue it.
type cursor struct {
	after   int64
	version int64
	routes  int64
	held    map[uint64]int64 // by hash of the key: the first row of a blocked route; guarded by Positions.mu
	skip    string           // the hot key that reads leave out; empty in waiting
}

var seed = maphash.MakeSeed()

// New returns empty positions: each bucket is read from its start.
func New(transport int16, buckets int) *Positions {
	return &Positions{Transport: transport, buckets: make([]position, buckets)}
}

// Buckets returns the number of buckets.
func (p *Positions) Buckets() int { return len(p.buckets) }

// A View is a snapshot of positions. Updates of a claim are dropped if the positions
// were reset after its snapshot.
type View struct {
	Turn    int // the bucket to begin with
	epoch   int
	next    int64
	buckets []position
}

// After returns, by bucket, the id behind which to look for rows: the cursor if the
// bucket has that version, the low watermark otherwise. Version -1 stands for no cursor.
func (v *View) After() (cursors, marks, versions []int64) {
	n := len(v.buckets)
	cursors, marks, versions = make([]int64, n), make([]int64, n), make([]int64, n)
	for b, at := range v.buckets {
		cursors[b], marks[b], versions[b] = at.lowWatermark, at.lowWatermark, -1
		if c := at.waiting; c != nil {
			cursors[b], versions[b] = max(at.lowWatermark, c.after), c.version
		}
	}
	return cursors, marks, versions
}

// RouteVersion returns the route version of the cursors, or 0 without cursors.
func (v *View) RouteVersion() int64 {
	for _, at := range v.buckets {
		if at.waiting != nil {
			return at.waiting.routes
		}
	}
	return 0
}

// Reset drops all positions. It is called after every error, which leaves the outcome
// of a transaction unknown.
func (p *Positions) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
}

// drop is Reset with mu held.
func (p *Positions) drop() {
	p.epoch++
	p.next = 0
	p.Unkeyed.Again()
	clear(p.buckets)
}

// Snapshot returns the current positions, with the bucket at which to begin. It drops
// cursors of older route versions.
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
			p.buckets[b].waiting = nil // never valid again
		}
	}
	p.turn++
	turn := p.turn * 17 % len(p.buckets) // 17 spreads successive claims over the buckets
	return &View{Turn: turn, epoch: p.epoch, next: p.next, buckets: slices.Clone(p.buckets)}
}

// ValidFor reports whether v is valid for the database that answers: server identifies
// it and its table, next is the table's next id (0 if unknown). Another server, or a
// next id at or below one already read, reuses ids for other rows: then all positions
// are dropped.
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
		id = max(id, at.lowWatermark)
		for _, c := range []*cursor{at.waiting, at.past} {
			if c != nil {
				id = max(id, c.after)
			}
		}
	}
	return id
}

// update changes a bucket's position, unless the positions were reset since v.
func (p *Positions) update(v *View, bucket int16, change func(*position)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.epoch == p.epoch {
		change(&p.buckets[bucket])
	}
}

// NextProbe returns, once per second, the next bucket to read from its start, in case
// a program that takes no dispatch locks has written rows below its low watermark. It drops the
// bucket's cursors. marked is false if no probe is due or the bucket has none.
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
	return int16(p.probe), at.lowWatermark > 0
}

// LowerWatermark moves a bucket's low watermark below first, the id of a row that was found at
// or below it, and drops the updates of running claims: they have not seen that row,
// and must not move the watermark over it again.
func (p *Positions) LowerWatermark(bucket int16, first int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first <= p.buckets[bucket].lowWatermark {
		p.buckets[bucket].lowWatermark = first - 1
		p.epoch++
	}
}
