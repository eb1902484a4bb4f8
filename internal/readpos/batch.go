package readpos

import (
	"context"
	"maps"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/outbox"
)

// A Bucket is one that a claim has locked, and its state under that lock.
type Bucket struct {
	Number  int16
	Version int64 // of its blocked keys
	Blocked bool  // whether it has any
}

// Routes is the state of a transport's blocked routes that a claim goes by.
type Routes struct {
	Version int64
	Any     bool
}

// A Read tells how to read one locked bucket: rows above After, without those of
// blocked keys and of the key Skip.
type Read struct {
	Bucket int16
	After  int64
	Skip   string // a hot key; empty for none
}

// A Row is one that a claim has read, or the end of a bucket without any that may
// be published.
type Row struct {
	Bucket  int16
	Last    *int64 // with None: the bucket's last id, waiting or not; nil when it has none
	None    bool   // only the two above are set
	Claimed outbox.ClaimedRow
	Headers string
	At      uint64 // where it is stored, if the database has a name for that
	Held    bool   // its route waits
}

// A Batch is the rows that one claim of keyed rows has taken, and what it has
// learned of its buckets.
type Batch struct {
	Positions *Positions
	View      *View
	Routes    Routes
	Rows      []outbox.ClaimedRow

	origins map[*waybill.Record]Origin
	buckets map[int16]*bucketRead
}

// An Origin is where a row is stored.
type Origin struct {
	Bucket int16
	At     uint64
}

// bucketRead is one bucket in a batch.
type bucketRead struct {
	Bucket
	read  Read
	from  cursor  // where reading began
	taken *cursor // where the position may move once all rows taken are gone; nil without any
}

// NewBatch begins a claim with what is known of p now.
func NewBatch(p *Positions) *Batch {
	return &Batch{Positions: p, View: p.Snapshot(), origins: map[*waybill.Record]Origin{}, buckets: map[int16]*bucketRead{}}
}

// Origin returns that of a row.
func (b *Batch) Origin(row outbox.ClaimedRow) (Origin, bool) {
	at, ok := b.origins[row.Record]
	return at, ok
}

// Add keeps a row whose turn it is.
func (b *Batch) Add(r Row) {
	rec := r.Claimed.Record
	Decode(rec, r.Headers)
	b.Rows = append(b.Rows, r.Claimed)
	b.origins[rec] = Origin{r.Bucket, r.At}
}

// Decode completes a record that was read with its headers as they are stored. Headers
// that cannot be read are the record's Problem.
func Decode(rec *waybill.Record, stored string) {
	rec.DispatchedAt = rec.DispatchedAt.UTC()
	rec.Problem = headers.Decode(rec, stored)
}

// Reads returns how to read the locked buckets: from behind their cursors where
// those still hold, and by turns past a hot key.
func (b *Batch) Reads(locked []Bucket, routes Routes) []Read {
	b.Routes = routes
	reads := make([]Read, len(locked))
	for i, bucket := range locked {
		at := b.View.buckets[bucket.Number]
		holds := func(c *cursor) bool {
			return c != nil && c.version == bucket.Version && c.routes == routes.Version
		}
		if !holds(at.waiting) {
			at.waiting = nil
		}
		if !holds(at.past) {
			at.past = nil
		}
		from := cursor{after: at.start(b.View.margin), version: bucket.Version, routes: routes.Version}
		switch {
		case at.past != nil && at.turn:
			from = *at.past
			from.after = max(from.after, at.mark)
		case at.waiting != nil:
			from = *at.waiting
			from.after = max(from.after, at.mark)
		}
		at.turn = !at.turn
		b.Positions.update(b.View, bucket.Number, func(p *position) { p.waiting, p.past, p.turn = at.waiting, at.past, at.turn })
		reads[i] = Read{bucket.Number, from.after, from.skip}
		b.buckets[bucket.Number] = &bucketRead{Bucket: bucket, read: reads[i], from: from}
	}
	return reads
}

// Take keeps what may be published of the rows found, which come bucket by bucket
// and by id, at most perBucket of each. Again says that there was nothing, and may
// be something behind rows that wait.
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

// take keeps what may be published of a bucket, and moves its cursor behind rows
// that may not. It reports whether a cursor has moved and nothing was taken.
func (b *Batch) take(in *bucketRead, found []Row, full bool) (moved bool) {
	next := in.from
	next.behind = maps.Clone(next.behind)
	if next.behind == nil {
		next.behind = map[uint64]bool{}
	}
	taken, keys := 0, map[string]bool{}
	for _, r := range found {
		if r.None {
			if r.Last != nil && *r.Last > next.after && (in.Blocked || b.Routes.Any || in.read.Skip != "") {
				next.after, moved = *r.Last, true
			}
			break
		}
		key := r.Claimed.Record.Key
		keys[key] = true
		if r.Held || next.behind[hashOf(key)] {
			next.behind[hashOf(key)] = true
			moved = moved || taken == 0
		} else {
			if taken == 0 && moved { // held rows end here: up to this point the cursor is sure
				sure := next
				sure.behind = maps.Clone(next.behind)
				b.keep(in, &sure)
			}
			taken++
			b.Add(r)
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
		b.keep(in, &next)
	case in.read.Skip != "": // the hot key has rows
		b.Positions.update(b.View, in.Number, func(p *position) { p.past = nil })
		return true
	}
	return moved
}

// noteHotKey begins to read past a key whose rows fill what is read of its bucket.
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

// keep moves the position that was read from behind c. Where nothing can wait in
// the bucket, it is the mark.
func (b *Batch) keep(in *bucketRead, c *cursor) {
	waits := in.Blocked || b.Routes.Any
	b.Positions.update(b.View, in.Number, func(p *position) {
		switch {
		case c.skip != "":
			p.past = c
		case waits:
			p.waiting = c
		default:
			p.mark, p.waiting = c.after, nil
		}
	})
}

// Halfway returns a function that reports whether half of the time has passed
// that ctx has left now. A claim that has only read past rows that wait ends then,
// empty-handed, and the next goes on behind them; one that ctx cuts off would be
// an error, which drops all positions.
func Halfway(ctx context.Context) (passed func() bool) {
	end, bounded := ctx.Deadline()
	half := time.Now().Add(time.Until(end) / 2)
	return func() bool { return bounded && time.Now().After(half) }
}

// Settled moves the positions of the buckets that were read behind the published
// rows, which are deleted. It must be called after the commit.
func (b *Batch) Settled(published []outbox.ClaimedRow) {
	gone := make(map[*waybill.Record]bool, len(published))
	for _, row := range published {
		gone[row.Record] = true
	}
	left := map[int16]int64{} // the lowest id that stays, by bucket
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
			b.keep(in, in.taken)
		case !in.Blocked && !b.Routes.Any && in.read.Skip == "":
			b.Positions.update(b.View, bucket, func(p *position) { p.mark = first - 1 })
		}
	}
}
