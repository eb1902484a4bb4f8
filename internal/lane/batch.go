package lane

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/outbox"
)

const (
	// Unkeyed is the bucket of rows without a key, which have no order.
	Unkeyed = -1
	// Route is the bucket of blocked routes.
	Route = -2
	// MaxBuckets is how many buckets a claim takes: enough keys to publish in
	// parallel, and enough buckets left for other relays.
	MaxBuckets = 32
)

// State says by which state of the blocked keys and routes a claim goes.
type State struct {
	Version int64
	Any     bool                // whether there are any
	Now     time.Time           // by the database's clock
	Next    map[int16]time.Time // when the first waiting key of a bucket is due; Route's: route
}

// waits reports whether rows of a bucket may be held back, and until when. The entry
// of a key may be in the bucket of its other rows, the unserialized or those that are
// not.
func (s State) waits(bucket int16) (until time.Time, waits bool) {
	for _, of := range []int16{bucket, Twin(bucket), Route} {
		if next, ok := s.Next[of]; ok && (!waits || next.Before(until)) {
			until, waits = next, true
		}
	}
	return until, waits
}

// A Row is one that a claim has read, or what it has read of a bucket without
// any that may be published.
type Row struct {
	Bucket     int16
	Last       *int64 // the bucket's last id, waiting or not; nil when it has none
	None       bool   // only the two above are set
	Claimed    outbox.ClaimedRow
	Headers    string
	At         uint64 // where it is stored, if the database has a name for that
	KeyBlocked bool
	Held       bool // its route waits
}

// A Batch is what one claim has taken, and what it has learned of its buckets.
type Batch struct {
	Lane  *Lane
	View  *View
	State State
	Rows  []outbox.ClaimedRow

	origins []Origin
	read    map[int16]span
}

// NewBatch begins a claim with what is known of l now.
func NewBatch(l *Lane) *Batch {
	return &Batch{Lane: l, View: l.Look(), read: map[int16]span{}}
}

// Origin is what settling must know of a row beside what the relay knows.
type Origin struct {
	Bucket     int16
	At         uint64
	KeyBlocked bool
}

// span is how far a bucket was read: where its mark may move once all of it is
// gone, or its cursor where some of it waits.
type span struct {
	mark   int64
	cursor *cursor
}

// Origin returns that of the i-th row.
func (b *Batch) Origin(i int) Origin { return b.origins[i] }

// Add keeps a row whose turn it is.
func (b *Batch) Add(r Row) {
	rec := r.Claimed.Record
	rec.DispatchedAt = rec.DispatchedAt.UTC()
	rec.Problem = headers.Decode(rec, r.Headers)
	b.Rows = append(b.Rows, r.Claimed)
	b.origins = append(b.origins, Origin{r.Bucket, r.At, r.KeyBlocked})
}

// From returns behind which id to read each of the locked buckets: behind its
// cursor where that still holds. One of unserialized rows is read from its start.
func (b *Batch) From(locked []int16) []int64 {
	from := make([]int64, len(locked))
	for i, bucket := range locked {
		at, ok := slot(bucket)
		if !ok {
			continue
		}
		if cur := b.View.cursors[at]; cur != nil && (cur.version != b.State.Version || !b.State.Now.Before(cur.until)) {
			b.View.cursors[at] = nil
			b.Lane.setCursor(b.View, bucket, nil)
		}
		from[i] = b.View.marks[at]
		if cur := b.View.cursors[at]; cur != nil {
			from[i] = max(from[i], cur.after)
		}
	}
	return from
}

// Take keeps what may be published of the rows found, which come bucket by
// bucket and by id. Again says that there was nothing, and may be something
// behind rows that wait.
func (b *Batch) Take(found []Row) (again bool) {
	for len(found) > 0 {
		n := 1
		for n < len(found) && found[n].Bucket == found[0].Bucket {
			n++
		}
		again = b.take(found[0].Bucket, found[:n]) || again
		found = found[n:]
	}
	return again && len(b.Rows) == 0
}

// take keeps what may be published of a bucket, and moves its cursor behind
// what may not. It reports whether the cursor has moved.
func (b *Batch) take(bucket int16, found []Row) (moved bool) {
	if _, ok := slot(bucket); !ok {
		for _, r := range found {
			if !r.None {
				b.Add(r)
			}
		}
		return false
	}
	until, waits := b.State.waits(bucket)
	if !waits {
		b.Lane.setCursor(b.View, bucket, nil)
	}
	next := cursor{version: b.State.Version, until: until, behind: map[uint64]bool{}}
	if at, _ := slot(bucket); b.View.cursors[at] != nil {
		old := b.View.cursors[at]
		next.after, next.behind = old.after, maps.Clone(old.behind)
	}
	taken := false
	for _, r := range found {
		if r.None {
			if waits && r.Last != nil && *r.Last > next.after {
				next.after, moved = *r.Last, true
			}
			break
		}
		key := hashOf(r.Claimed.Record.Key)
		if !r.Held && !next.behind[key] {
			if !taken && waits {
				// Held rows end here: up to this point the cursor is sure.
				b.Lane.setCursor(b.View, bucket, &cursor{next.after, next.version, next.until, maps.Clone(next.behind)})
			}
			taken = true
			b.Add(r)
		} else {
			next.behind[key] = true
			moved = moved || !taken
		}
		next.after = r.Claimed.ID
	}
	switch {
	case !waits && taken:
		b.read[bucket] = span{mark: next.after}
	case !waits:
	case taken:
		b.read[bucket] = span{cursor: &next}
	default:
		b.Lane.setCursor(b.View, bucket, &next)
	}
	return moved && !taken
}

// Halfway returns a function that reports whether half of the time has passed
// that ctx has left now. A claim that has only read past what waits ends then,
// empty-handed, and the next goes on behind it; one that ctx cuts off would be
// an error, which makes everything forgotten.
func Halfway(ctx context.Context) (passed func() bool) {
	end, bounded := ctx.Deadline()
	half := time.Now().Add(time.Until(end) / 2)
	return func() bool { return bounded && time.Now().After(half) }
}

// Idle returns those of the locked buckets that another attempt of the claim need
// not look at: nothing was taken, and no cursor says so of them.
func (b *Batch) Idle(locked []int16) (idle []int16) {
	if len(b.Rows) > 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(locked), func(bucket int16) bool { return !Unserialized(bucket) })
}

// RouteWaits reports whether any route of the lane waits.
func (b *Batch) RouteWaits() bool {
	_, waits := b.State.Next[Route]
	return waits
}

// Left returns the index of each row by its id, for Settled to be told of those
// that stay.
func (b *Batch) Left() map[int64]int {
	all := make(map[int64]int, len(b.Rows))
	for i, row := range b.Rows {
		all[row.ID] = i
	}
	return all
}

// Settled moves the marks and cursors of the buckets that were read. Left are
// the rows that were not deleted. It must be called after the commit.
func (b *Batch) Settled(left map[int64]int) {
	first := map[int16]int64{} // of those left, by bucket
	for id, i := range left {
		bucket := b.origins[i].Bucket
		if at, ok := first[bucket]; !ok || id < at {
			first[bucket] = id
		}
	}
	for bucket, read := range b.read {
		at, unfinished := first[bucket]
		switch {
		case read.cursor != nil && !unfinished:
			b.Lane.setCursor(b.View, bucket, read.cursor)
		case read.cursor != nil:
			// What was not published comes again, from the cursor before it.
		case unfinished:
			b.Lane.mark(b.View, bucket, at-1)
		default:
			b.Lane.mark(b.View, bucket, read.mark)
		}
	}
}

// BlockedRow is the row_id of a row's blocked entry: a key blocks as a whole, a
// message without key alone.
func BlockedRow(row outbox.ClaimedRow) int64 {
	if row.Record.Key == "" {
		return row.ID
	}
	return 0
}
