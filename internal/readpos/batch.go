package readpos

import (
	"context"
	"hash/maphash"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/outbox"
)

// A Bucket is a bucket locked by a claim, with its state under that lock.
type Bucket struct {
	Number  int16
	Version int64 // of its blocked keys
	Blocked bool  // whether it has any
}

// Routes is the snapshot of a transport's blocked routes that a claim is taken under.
type Routes struct {
	Version int64
	Any     bool
}

// A Read selects the rows to read of one locked bucket: ids above After, without rows
// of blocked keys and of the key Skip.
type Read struct {
	Bucket int16
	After  int64
	Skip   string // a hot key; empty for none
}

// A Row is a row read by a claim, or with None the result for a bucket in which the
// read found no row.
type Row struct {
	Bucket  int16
	Last    *int64 // with None: the bucket's last id, of any row; nil if none is above After
	None    bool   // only Bucket and Last are set
	Claimed outbox.ClaimedRow
	Headers string
	At      uint64 // physical location (ctid), if the database has one
	Held    bool   // its route is blocked
}

// A Batch is the rows taken by one claim of keyed rows, with the positions reached in
// its buckets.
type Batch struct {
	Positions *Positions
	View      *View
	Routes    Routes
	Rows      []outbox.ClaimedRow

	origins map[*waybill.Record]Origin
	buckets map[int16]*bucketRead
}

// An Origin is the storage location of a row.
type Origin struct {
	Bucket int16
	At     uint64
}

// bucketRead is the read of one bucket in a batch.
type bucketRead struct {
	Bucket
	read  Read
	from  cursor  // start of the read
	taken *cursor // position once all rows taken are published; nil if none was taken
}

// NewBatch returns an empty batch on a snapshot of p.
func NewBatch(p *Positions) *Batch {
	return &Batch{Positions: p, View: p.Snapshot(), origins: map[*waybill.Record]Origin{}, buckets: map[int16]*bucketRead{}}
}

// Origin returns the origin of a row of the batch.
func (b *Batch) Origin(row outbox.ClaimedRow) (Origin, bool) {
	at, ok := b.origins[row.Record]
	return at, ok
}

// Decode completes a record with its stored headers, and sets its time to UTC. An
// error of the headers becomes the record's Problem.
func Decode(rec *waybill.Record, stored string) {
	rec.DispatchedAt = rec.DispatchedAt.UTC()
	rec.Problem = headers.Decode(rec, stored)
}

// Reads returns the read of each locked bucket: behind its cursor if that is valid,
// else behind its low watermark, and every other time without its hot key.
func (b *Batch) Reads(locked []Bucket, routes Routes) []Read {
	b.Routes = routes
	reads := make([]Read, len(locked))
	for i, bucket := range locked {
		at := b.View.buckets[bucket.Number]
		valid := func(c *cursor) *cursor {
			if c == nil || c.version != bucket.Version || c.routes != routes.Version {
				return nil
			}
			return c
		}
		at.waiting, at.past = valid(at.waiting), valid(at.past)
		from := cursor{version: bucket.Version, routes: routes.Version, held: map[uint64]int64{}}
		switch {
		case at.past != nil && at.turn:
			from = *at.past
		case at.waiting != nil:
			from = *at.waiting
		}
		from.after = max(from.after, at.lowWatermark)
		at.turn = !at.turn
		b.Positions.update(b.View, bucket.Number, func(p *position) { p.waiting, p.past, p.turn = at.waiting, at.past, at.turn })
		reads[i] = Read{bucket.Number, from.after, from.skip}
		b.buckets[bucket.Number] = &bucketRead{Bucket: bucket, read: reads[i], from: from}
	}
	return reads
}

// Take adds the publishable rows of found to the batch. found is ordered by bucket and
// id, with at most perBucket rows of each bucket. again is true if no row was taken
// and another read may find some behind the blocked rows.
func (b *Batch) Take(found []Row, perBucket int) (again bool) {
	for len(found) > 0 {
		n := 1
		for n < len(found) && found[n].Bucket == found[0].Bucket {
			n++
		}
		again = b.take(b.buckets[found[0].Bucket], found[:n], n >= perBucket) || again
		found = found[n:]
	}
	return again && len(b.Rows) == 0
}

// take adds the publishable rows of a bucket, and moves its cursor behind blocked ones.
// It reports whether it took no row and another read may find some.
func (b *Batch) take(in *bucketRead, found []Row, full bool) (moved bool) {
	next := in.from
	taken, keys := 0, map[string]bool{}
	for _, r := range found {
		if r.None {
			if r.Last != nil && *r.Last > next.after && (in.Blocked || b.Routes.Any || in.read.Skip != "") {
				next.after, moved = *r.Last, true
			}
			break
		}
		keys[r.Claimed.Record.Key] = true
		if b.Positions.holds(next.held, r) {
			moved = moved || taken == 0
		} else {
			if taken == 0 && moved { // end of the leading held rows: up to here the cursor depends on no row taken
				b.keep(in, next)
			}
			taken++
			Decode(r.Claimed.Record, r.Headers)
			b.Rows = append(b.Rows, r.Claimed)
			b.origins[r.Claimed.Record] = Origin{r.Bucket, r.At}
		}
		next.after = r.Claimed.ID
	}
	if in.read.Skip == "" {
		b.noteHotKey(in, next, keys, full && taken == len(found))
	}
	if taken > 0 {
		in.taken = &next
		return false
	}
	switch {
	case moved:
		b.keep(in, next)
	case in.read.Skip != "": // only the hot key may have rows
		b.Positions.update(b.View, in.Number, func(p *position) { p.past = nil })
		return true
	}
	return moved
}

// holds reports whether a row is held back, by its route or behind a row of its key in held, which it may be the first
// of. At worst a collision of hashes delays a key until the route that blocks the other key is unblocked.
func (p *Positions) holds(held map[uint64]int64, r Row) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := maphash.String(seed, r.Claimed.Record.Key)
	if first, known := held[key]; known && first < r.Claimed.ID {
		return true
	} else if r.Held {
		held[key] = r.Claimed.ID
	}
	return r.Held
}

// noteHotKey begins to skip a key whose rows alone fill the read of its bucket, and
// stops skipping otherwise.
func (b *Batch) noteHotKey(in *bucketRead, next cursor, keys map[string]bool, full bool) {
	if !full || len(keys) != 1 {
		b.Positions.update(b.View, in.Number, func(p *position) { p.past = nil })
		return
	}
	for key := range keys {
		next.skip = key
	}
	b.Positions.update(b.View, in.Number, func(p *position) {
		if p.past == nil || p.past.skip != next.skip {
			p.past, p.turn = &next, true
		}
	})
}

// keep stores c as the position that the read began at: the cursor of the hot key, the
// cursor behind blocked rows, or the low watermark if no row of the bucket can be blocked.
func (b *Batch) keep(in *bucketRead, c cursor) {
	waits := in.Blocked || b.Routes.Any
	b.Positions.update(b.View, in.Number, func(p *position) {
		switch {
		case c.skip != "":
			p.past = &c
		case waits:
			p.waiting = &c
		default:
			p.lowWatermark, p.waiting = c.after, nil
		}
	})
}

// Halfway returns a function that reports whether half of the time that ctx has left now has
// passed. A claim that has read only blocked rows by then returns none, and the next one
// continues behind them: the error of one that is cut off drops all positions.
func Halfway(ctx context.Context) (passed func() bool) {
	end, bounded := ctx.Deadline()
	half := time.Now().Add(time.Until(end) / 2)
	return func() bool { return bounded && time.Now().After(half) }
}

// Settled moves the positions of the batch's buckets behind the published rows. It
// must be called after the commit that deletes them.
func (b *Batch) Settled(published []outbox.ClaimedRow) {
	gone := make(map[*waybill.Record]bool, len(published))
	for _, row := range published {
		gone[row.Record] = true
	}
	left := map[int16]int64{} // lowest id that was not published, by bucket
	for _, row := range b.Rows {
		bucket := b.origins[row.Record].Bucket
		if at, ok := left[bucket]; !gone[row.Record] && (!ok || row.ID < at) {
			left[bucket] = row.ID
		}
	}
	for bucket, in := range b.buckets {
		first, unfinished := left[bucket]
		switch {
		case in.taken == nil:
		case !unfinished:
			b.keep(in, *in.taken)
		case !in.Blocked && !b.Routes.Any && in.read.Skip == "":
			b.Positions.update(b.View, bucket, func(p *position) { p.lowWatermark = first - 1 })
		}
	}
}
