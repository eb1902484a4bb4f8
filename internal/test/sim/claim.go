package sim

import (
	"strconv"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/outbox"
)

// claim locks buckets, reads their state in a later statement and their rows in the
// next.
func (r *relaying) claim(t *tx, b *readpos.Batch) (again, ok bool) {
	var snapshot, early []*row
	var versions [buckets]int64
	r.step("claim")
	// A statement's snapshot is older than the locks it gets.
	r.request("claim snapshot", func(reply func()) {
		snapshot, versions = r.db.visible(), r.db.versions
		early = r.db.publishable(snapshot)
		reply()
	})
	var locked []readpos.Bucket
	if !t.do(r.thread, "claim lock", func() {
		for i := range int16(buckets) {
			bucket := (i + int16(b.View.Turn)) % buckets
			if g := &r.db.claims[bucket]; g.holder == nil && len(locked) < 2 {
				r.db.lock(t, g, func() {})
				locked = append(locked, readpos.Bucket{Number: bucket})
			}
		}
	}) || !r.positions.ValidFor(b.View, "1", 0) {
		return false, false
	}
	if !t.do(r.thread, "claim state", func() {
		for i, at := range locked {
			locked[i].Version, locked[i].Blocked = r.db.versions[at.Number], r.db.anyBlocked(at.Number)
			if r.mutant == VersionBeforeLock {
				locked[i].Version = versions[at.Number]
			}
		}
	}) {
		return false, false
	}
	var found []readpos.Row
	reads := b.Reads(locked, readpos.Routes{})
	if !t.do(r.thread, "claim read", func() {
		all := r.db.visible()
		rows := r.db.publishable(all)
		if r.mutant == LockAndReadAtOnce {
			all, rows = snapshot, early
		}
		for _, read := range reads {
			found = append(found, inBucket(all, rows, read)...)
		}
	}) {
		return false, false
	}
	again = b.Take(found, perBucket)
	if len(b.Rows) > 0 {
		ids := make([]int64, len(b.Rows))
		for i, row := range b.Rows {
			ids[i] = row.ID
		}
		r.trace("%s: reads %+v: rows %v", r.name, reads, ids)
	}
	return again, true
}

func (db *database) anyBlocked(bucket int16) bool {
	for key := range db.blocked {
		if home(key) == bucket {
			return true
		}
	}
	return false
}

// publishable returns the rows whose keys are not blocked.
func (db *database) publishable(rows []*row) (free []*row) {
	for _, r := range rows {
		if db.blocked[r.message.key] == nil {
			free = append(free, r)
		}
	}
	return free
}

// inBucket returns the oldest publishable rows of a bucket, or its last id.
func inBucket(all, publishable []*row, read readpos.Read) (found []readpos.Row) {
	in := func(r *row) bool { return r.bucket == read.Bucket && r.id > read.After }
	for _, r := range publishable {
		claimed := r.message.claimed(r.id)
		if in(r) && claimed.Record.Key != read.Skip && len(found) < perBucket {
			found = append(found, readpos.Row{Bucket: read.Bucket, Claimed: claimed, Headers: "{}"})
		}
	}
	if len(found) > 0 {
		return found
	}
	var last *int64
	for _, r := range all {
		if in(r) {
			last = &r.id
		}
	}
	return []readpos.Row{{Bucket: read.Bucket, Last: last, None: true}}
}

// row returns the row with an id, or nil.
func (db *database) row(id int64) *row {
	for _, r := range db.rows {
		if r.id == id && !r.gone {
			return r
		}
	}
	return nil
}

// claimed returns m as a claimed row.
func (m *message) claimed(id int64) outbox.ClaimedRow {
	return outbox.ClaimedRow{ID: id, Record: &waybill.Record{Name: strconv.Itoa(m.no), Key: "k" + strconv.Itoa(m.key)}}
}
