package readpos

import (
	"sync"
	"time"
)

// Unkeyed is the read position of the rows of one transport without a key. They have no
// commit order: each read begins a margin below the position, and at intervals at the
// start of the table, for rows that were committed late. Without it each read passes the
// dead index entries of all rows since the last vacuum or purge. The zero value is ready
// for use, also concurrent use.
type Unkeyed struct {
	mu      sync.Mutex
	after   int64         // the id of the last row claimed, or of the last one given out
	started time.Time     // time of the last read from the start
	took    time.Duration // its duration
}

const (
	unkeyedMargin = 1000 // ids, of which most rows are dead

	// Reads from the start are at least unkeyedPause apart, and take at most one part in
	// unkeyedShare of the time unless they would be more than unkeyedLongest apart.
	unkeyedPause   = time.Second
	unkeyedShare   = 20
	unkeyedLongest = 10 * time.Second
)

// After returns the id behind which to read.
func (p *Unkeyed) After(now time.Time) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.started) >= min(max(unkeyedPause, unkeyedShare*p.took), unkeyedLongest) {
		p.started = now
		return 0
	}
	return max(p.after-unkeyedMargin, 0)
}

// Read notes the last row of a read, or without rows the last id given out. A row with a
// lower id than those before it may be one of several that were committed late, or after
// a TRUNCATE.
func (p *Unkeyed) Read(last int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.after = last
}

// Took notes the duration of a read behind an id.
func (p *Unkeyed) Took(after int64, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if after == 0 {
		p.took = took
	}
}

// Again has reads begin at the start of the table until Read.
func (p *Unkeyed) Again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.after, p.started = 0, time.Time{}
}
