package readpos

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// stored is a row of the model's outbox.
type stored struct {
	id     int64
	bucket int16
	key    string
	name   string
	parked bool
}

// model is an outbox with buckets, and the events that the positions must survive.
type model struct {
	t         *rapid.T
	positions *Positions
	rows      []stored // by id
	last      int64
	blocked   map[string]bool // keys with a blocked entry
	parked    map[string]bool // subset of blocked: keys with parked rows
	versions  []int64         // by bucket
	waiting   map[string]bool // blocked routes
	routes    int64           // version of waiting
	open      []*openClaim    // not committed
	late      []func()        // postponed calls of Settled
}

type openClaim struct {
	*Batch
	locked []int16
}

var modelKeys = []string{"a", "b", "c", "d", "e"}

const modelBuckets = 2

func bucketOf(key string) int16 { return int16(key[0]-'a') % modelBuckets }

// commit adds up to six rows of one key.
func (m *model) commit() {
	key := rapid.SampledFrom(modelKeys).Draw(m.t, "key")
	for range rapid.IntRange(1, 6).Draw(m.t, "rows") {
		m.last++
		name := rapid.SampledFrom([]string{"x", "x", "y", "z"}).Draw(m.t, "name")
		m.rows = append(m.rows, stored{m.last, bucketOf(key), key, name, false})
	}
}

// claim locks buckets, reads them, and checks the rows taken.
func (m *model) claim() {
	var locked []Bucket
	for b := range int16(modelBuckets) {
		taken := slices.ContainsFunc(m.open, func(c *openClaim) bool { return slices.Contains(c.locked, b) })
		if !taken && rapid.Bool().Draw(m.t, "lock") {
			locked = append(locked, m.bucket(b))
		}
	}
	m.take(locked, rapid.IntRange(1, 4).Draw(m.t, "limit"))
}

func (m *model) bucket(b int16) Bucket {
	at := Bucket{Number: b, Version: m.versions[b]}
	for key := range m.blocked {
		at.Blocked = at.Blocked || bucketOf(key) == b
	}
	return at
}

func (m *model) take(locked []Bucket, limit int) (again bool) {
	c := &openClaim{Batch: NewBatch(m.positions)}
	var found []Row
	for _, read := range c.Reads(locked, Routes{m.routes, len(m.waiting) > 0}) {
		found = append(found, m.read(read, limit)...)
		c.locked = append(c.locked, read.Bucket)
	}
	again = c.Take(found, limit)
	m.check(c, again)
	if len(c.Rows) > 0 {
		m.open = append(m.open, c)
	}
	return again
}

// read is the query of a claim.
func (m *model) read(read Read, limit int) (found []Row) {
	var last *int64
	for _, r := range m.rows {
		if r.bucket != read.Bucket || r.parked || r.id <= read.After {
			continue
		}
		last = &r.id
		if m.blocked[r.key] || r.key == read.Skip || len(found) == limit {
			continue
		}
		claimed := outbox.ClaimedRow{ID: r.id, Record: &waybill.Record{Key: r.key, Name: r.name}}
		found = append(found, Row{Bucket: read.Bucket, Claimed: claimed, Headers: "{}", Held: m.waiting[r.name]})
	}
	if len(found) == 0 {
		return []Row{{Bucket: read.Bucket, None: true, Last: last}}
	}
	return found
}

// publishable returns the rows of a key in front of its first blocked row.
func (m *model) publishable(key string) (rows []int64) {
	for _, r := range m.rows {
		if r.key != key {
			continue
		}
		if m.blocked[key] || m.waiting[r.name] {
			break
		}
		rows = append(rows, r.id)
	}
	return rows
}

// check verifies the contract of a claim: it has the first publishable rows of each
// key, without a gap; it is empty only if its buckets have none, or with again.
func (m *model) check(c *openClaim, again bool) {
	taken := map[string][]int64{}
	for _, r := range c.Rows {
		taken[r.Record.Key] = append(taken[r.Record.Key], r.ID)
	}
	for key, ids := range taken {
		if all := m.publishable(key); len(ids) > len(all) || !slices.Equal(ids, all[:len(ids)]) {
			m.t.Fatalf("claim of %v of key %s, want the first of %v", ids, key, all)
		}
	}
	if len(c.Rows) > 0 || again {
		return
	}
	for _, key := range modelKeys {
		if all := m.publishable(key); len(all) > 0 && slices.Contains(c.locked, bucketOf(key)) {
			m.t.Fatalf("an empty claim of buckets %v, and %v of key %s may be published", c.locked, all, key)
		}
	}
}

// settle ends a claim: of each key some first rows are published, and the next one may
// be refused.
func (m *model) settle() {
	if len(m.open) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.open)-1).Draw(m.t, "claim")
	c := m.open[i]
	m.open = slices.Delete(m.open, i, i+1)
	var published []outbox.ClaimedRow
	stays := map[string]bool{}
	for _, r := range c.Rows {
		key := r.Record.Key
		fate := rapid.SampledFrom([]string{"published", "published", "published", "left", "refused", "parked"}).Draw(m.t, "fate")
		switch {
		case stays[key]:
		case fate == "published":
			published = append(published, r)
			m.remove(r.ID)
		case fate == "left":
			stays[key] = true
		default:
			stays[key] = true
			m.block(key, fate == "parked")
		}
	}
	switch rapid.IntRange(0, 9).Draw(m.t, "end") {
	case 0: // the answer to the commit is lost
		m.positions.Reset()
	case 1, 2:
		m.late = append(m.late, func() { c.Settled(published) })
	default:
		c.Settled(published)
	}
}

func (m *model) remove(id int64) {
	m.rows = slices.DeleteFunc(m.rows, func(r stored) bool { return r.id == id })
}

func (m *model) block(key string, park bool) {
	m.blocked[key] = true
	m.versions[bucketOf(key)]++
	if park {
		m.parked[key] = true
		m.setAside(key, true)
	}
}

func (m *model) setAside(key string, aside bool) {
	for i, r := range m.rows {
		m.rows[i].parked = r.key == key && aside || r.key != key && r.parked
	}
}

// unblock publishes the head of a blocked key, or releases a parked one, for buckets
// without an open claim: both need the bucket's lock.
func (m *model) unblock() {
	for _, key := range slices.Sorted(maps.Keys(m.blocked)) {
		locked := slices.ContainsFunc(m.open, func(c *openClaim) bool { return slices.Contains(c.locked, bucketOf(key)) })
		if locked || !rapid.Bool().Draw(m.t, "unblock") {
			continue
		}
		if m.parked[key] {
			m.setAside(key, false)
			delete(m.parked, key)
		} else if all := slices.IndexFunc(m.rows, func(r stored) bool { return r.key == key }); all >= 0 {
			m.remove(m.rows[all].id)
		}
		delete(m.blocked, key)
		m.versions[bucketOf(key)]++
	}
}

// route blocks or unblocks a route. Open claims have read its state before.
func (m *model) route() {
	name := rapid.SampledFrom([]string{"y", "z"}).Draw(m.t, "route")
	if m.waiting[name] {
		delete(m.waiting, name)
	} else {
		m.waiting[name] = true
	}
	m.routes++
}

// catchUp makes the late calls of Settled.
func (m *model) catchUp() {
	for _, settled := range m.late {
		settled()
	}
	m.late = nil
}

// drain unblocks all keys and routes, and publishes all rows.
func (m *model) drain() {
	for len(m.open) > 0 {
		m.settle()
	}
	m.catchUp()
	for key := range m.blocked {
		m.setAside(key, false)
		m.versions[bucketOf(key)]++
	}
	clear(m.blocked)
	clear(m.parked)
	clear(m.waiting)
	m.routes++
	for n := 2*len(m.rows) + 20; len(m.rows) > 0; n-- {
		if n == 0 {
			m.t.Fatalf("rows %v are never claimed", m.rows)
		}
		m.take([]Bucket{m.bucket(0), m.bucket(1)}, 3)
		for _, c := range m.open {
			for _, r := range c.Rows {
				m.remove(r.ID)
			}
			c.Settled(c.Rows)
		}
		m.open = nil
	}
}

// In every sequence of events claims return the rows of a key in order, without a gap,
// and in the end all of them.
func TestPositionsPassNothingOver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{
			t: t, positions: New(1, modelBuckets), blocked: map[string]bool{}, parked: map[string]bool{},
			versions: make([]int64, modelBuckets), waiting: map[string]bool{},
		}
		step := func(do func()) func(*rapid.T) { return func(t *rapid.T) { m.t = t; do() } }
		t.Repeat(map[string]func(*rapid.T){
			"commit": step(m.commit), "commit more": step(m.commit), "claim": step(m.claim), "claim more": step(m.claim),
			"settle": step(m.settle), "settle more": step(m.settle), "unblock": step(m.unblock), "route": step(m.route),
			"catch up": step(m.catchUp),
		})
		m.t = t
		m.drain()
	})
}
