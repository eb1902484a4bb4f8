// Package lane is what the relays of one process know of one transport of an
// outbox in buckets: behind which ids there is nothing left to read. It decides
// which rows of a claim may be published and keeps what the claim has learned,
// whatever database they are in. What it keeps only saves reading: dropped, it
// comes back from the tables.
package lane

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/mutant"
	"github.com/waybill-go/waybill/outbox"
)

// A Lane is one transport. It is safe for concurrent use.
type Lane struct {
	ID int16

	mu      sync.Mutex
	epoch   int       // counts how often everything was forgotten
	turn    int       // where the next claim begins to look
	marks   []int64   // by bucket: below or at it there are no rows
	cursors []*cursor // by bucket; nil where none holds
	server  string    // whose ids the marks are
	ticked  time.Time // when the last bucket was looked at from its start
	tick    int       // the bucket that is next
	freed   time.Time // when stuck sessions were last looked for
	kept    time.Time // when upkeep was last done
}

// New returns a lane of which nothing is known.
func New(id int16, buckets int) *Lane {
	return &Lane{ID: id, marks: make([]int64, buckets), cursors: make([]*cursor, buckets)}
}

// Buckets returns how many there are.
func (l *Lane) Buckets() int { return len(l.marks) }

// Unserialized reports whether a bucket has the rows of those who take no
// dispatch lock.
func Unserialized(bucket int16) bool { return bucket >= outbox.Unserialized }

// Twin returns the bucket of the unserialized rows of a bucket's keys, and of that
// the other one.
func Twin(bucket int16) int16 { return (bucket + outbox.Unserialized) % (2 * outbox.Unserialized) }

// Keyed returns the buckets whose locks relays take for these.
func Keyed(buckets []int16) []int16 {
	locks := make([]int16, len(buckets))
	for i, bucket := range buckets {
		locks[i] = bucket % outbox.Unserialized
	}
	return locks
}

// slot returns where a bucket's mark and cursor are kept. A bucket of unserialized
// rows has neither: its ids become visible in any order, so that either would
// pass over a row of one key that commits after a later row of another.
func slot(bucket int16) (i int, ok bool) {
	if Unserialized(bucket) {
		return int(bucket) - outbox.Unserialized, mutant.Active(mutant.UnserializedMark)
	}
	return int(bucket), true
}

// A View is what a claim goes by: all that was remembered at one moment. What
// the claim learns is kept only if nothing was forgotten since.
type View struct {
	Turn    int  // the bucket to begin with
	Flip    bool // unserialized rows come before the others of their bucket
	epoch   int
	marks   []int64
	cursors []*cursor
}

// After returns, by bucket, behind which id to look for rows: where its cursor
// holds, and where it does not.
func (v *View) After() (cursors, marks []int64, until []time.Time) {
	cursors, marks, until = slices.Clone(v.marks), v.marks, make([]time.Time, len(v.marks))
	for b, c := range v.cursors {
		until[b] = time.Unix(0, 0)
		if c != nil {
			cursors[b], until[b] = max(v.marks[b], c.after), c.until
		}
	}
	return cursors, marks, until
}

// Version is that of the cursors.
func (v *View) Version() int64 {
	for _, c := range v.cursors {
		if c != nil {
			return c.version
		}
	}
	return 0
}

// A cursor lets a claim begin behind the rows of keys and routes that wait, so
// that they cost nothing. It holds while version is the lane's and until the
// first of them is due.
type cursor struct {
	after   int64
	version int64
	until   time.Time       // by the database's clock
	behind  map[uint64]bool // keys, hashed, that have a row of a waiting route at or below after
}

var seed = maphash.MakeSeed()

// hashOf stands for a key in a cursor: a collision makes a key wait for a route
// that is not its own, and nothing worse.
func hashOf(key string) uint64 { return maphash.String(seed, key) }

// Forget drops what was remembered. Every error does: after it nobody knows
// what was committed.
func (l *Lane) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop()
}

// drop is Forget for who holds mu.
func (l *Lane) drop() {
	l.epoch++
	clear(l.marks)
	clear(l.cursors)
}

// Look returns what is remembered now, and the next turn.
func (l *Lane) Look() *View {
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := int64(0)
	for _, c := range l.cursors {
		if c != nil {
			newest = max(newest, c.version)
		}
	}
	for b, c := range l.cursors {
		if c != nil && c.version < newest {
			l.cursors[b] = nil // it cannot hold any more
		}
	}
	l.turn++
	turn := l.turn * 17 % len(l.marks) // 17: neighbours in time are not neighbours in place
	return &View{Turn: turn, epoch: l.epoch, Flip: l.turn/len(l.marks)%2 == 1, marks: slices.Clone(l.marks), cursors: slices.Clone(l.cursors)}
}

// Serves reports whether v still holds for the server and table that answer,
// which now identifies. Others than before, which give the same ids to other
// rows, make everything forgotten.
func (l *Lane) Serves(v *View, now string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.server != now {
		if l.server != "" {
			l.drop()
		}
		l.server = now
	}
	return v.epoch == l.epoch
}

// mark moves a bucket's mark; it must be called after the commit that makes it
// true.
func (l *Lane) mark(v *View, bucket int16, at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i, ok := slot(bucket); ok && v.epoch == l.epoch {
		l.marks[i] = at
	}
}

func (l *Lane) setCursor(v *View, bucket int16, c *cursor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i, ok := slot(bucket); ok && v.epoch == l.epoch {
		l.cursors[i] = c
	}
}

// Due returns the bucket to look at from its start, one each second, in case
// something was written below its mark or cursor by a program that takes no
// locks.
func (l *Lane) Due(now time.Time) (bucket int16, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.ticked) < time.Second {
		return 0, false
	}
	l.ticked = now
	l.tick = (l.tick + 1) % len(l.marks)
	l.cursors[l.tick] = nil
	return int16(l.tick), l.marks[l.tick] > 0
}

// Lower moves a mark back behind which a row was found. Claims that are under
// way have not seen that row, and must not move the mark over it again.
func (l *Lane) Lower(bucket int16, first int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first <= l.marks[bucket] {
		l.marks[bucket] = first - 1
		l.epoch++
	}
}

// Keep notes that upkeep is done now.
func (l *Lane) Keep(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = now
}

// Neglected reports whether upkeep was not done for so long.
func (l *Lane) Neglected(now time.Time, by time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(l.kept) >= by
}

// Free reports, once in every so often, that it is time to end sessions that
// are stuck.
func (l *Lane) Free(now time.Time, every time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.freed) < every {
		return false
	}
	l.freed = now
	return true
}
