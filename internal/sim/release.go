package sim

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/waybill-go/waybill/internal/chain"
	"github.com/waybill-go/waybill/outbox"
)

const (
	halting     = 4 // keys below are tried for ever
	maxAttempts = 2 // then one of the others is parked
	never       = time.Duration(math.MaxInt64)
	pause       = 200 * time.Millisecond // between looks for released keys
)

// refused counts a refusal of the head of a key, which waits longer each time, and
// is parked in the end with all that is in the outbox of it.
func (db *database) refused(key int) {
	b := db.blocked[key]
	if b == nil {
		b = &blocked{}
		db.blocked[key] = b
	}
	db.version++
	b.failures++
	if b.until = db.now + min(time.Second<<b.failures, 30*time.Second); key < halting || b.failures < maxAttempts {
		return
	}
	b.until = never
	for _, r := range db.visible() {
		if r.message.key == key {
			b.parked = append(b.parked, r.message)
			r.gone = true
		}
	}
	db.trace("key %d is parked with %d messages", key, len(b.parked))
}

// operator begins somebody who releases what is parked now and then.
func (w *world) operator() {
	w.begin("operator", func(p *process) {
		p.thread(func(th *thread) {
			for {
				th.sleep(th.between(0, 10*time.Second))
				th.request("release", func(reply func()) { w.db.release(); reply() })
			}
		})
	})
}

// release lets all parked keys go.
func (db *database) release() {
	for key, b := range db.inOrder() {
		if b.until != never || b.released {
			continue
		}
		db.trace("key %d is released", key)
		b.released, b.again, b.failures = true, db.now, 0
		db.version++
		if db.mutant == ReleaseByReinsertion {
			for _, m := range b.parked {
				db.last++
				db.rows = append(db.rows, &row{id: db.last, bucket: int16(key % buckets), message: m, visible: true})
			}
			delete(db.blocked, key)
		}
	}
}

// inOrder yields the blocked keys in an order that does not change.
func (db *database) inOrder() func(yield func(int, *blocked) bool) {
	return func(yield func(int, *blocked) bool) {
		for key := range keys {
			if b := db.blocked[key]; b != nil && !yield(key, b) {
				return
			}
		}
	}
}

// release publishes what is parked of released keys, and returns how many messages
// it had.
func (r *relaying) release() int {
	any := false
	for _, b := range r.db.inOrder() {
		any = any || b.released && b.again <= r.db.now
	}
	if !any || r.now < r.looked+pause {
		return 0
	}
	r.looked = r.now
	r.link.connect(r.thread)
	t := r.db.begin(r.process)
	t.idle()
	var rows []outbox.ClaimedRow
	var released []int // keys
	if !t.do(r.thread, "release lock", func() {
		for key, b := range r.db.inOrder() {
			bucket := key % buckets
			switch holder := r.db.claimed[bucket]; {
			case !b.released || b.again > r.db.now:
			case holder == nil && r.mutant != ReleaseWithoutLock:
				r.db.claimed[bucket] = t
				t.onEnd = append(t.onEnd, func() { r.db.claimed[bucket] = nil })
				released = append(released, key)
			case holder == t, r.mutant == ReleaseWithoutLock:
				released = append(released, key)
			}
		}
	}) || len(released) == 0 || !t.do(r.thread, "release read", func() {
		for _, key := range released {
			b := r.db.blocked[key]
			if b == nil || !b.released {
				continue
			}
			for _, m := range b.parked[:min(len(b.parked), batch/4)] {
				rows = append(rows, m.claimed(-int64(m.no)-1))
			}
		}
	}) {
		t.rollback(r.thread, "claim rollback")
		return 0
	}
	c := r.publish(rows)
	if t.do(r.thread, "settle release", func() { r.settleRelease(t, released, rows, c.Outcome) }) {
		t.commit(r.thread, "settle commit")
	}
	return len(rows)
}

// settleRelease takes what was published out of the failure store. A key goes on in
// the outbox when nothing of it is left there.
func (r *relaying) settleRelease(t *tx, released []int, rows []outbox.ClaimedRow, outcome func(i int) (chain.State, error)) {
	t.onCommit = append(t.onCommit, func() {
		r.db.version++
		for i, row := range rows {
			no, _ := strconv.Atoi(row.Record.Name)
			m := r.laws.messages[no]
			b := r.db.blocked[m.key]
			if b == nil {
				continue
			}
			switch state, _ := outcome(i); state {
			case chain.Published:
				b.parked = slices.DeleteFunc(b.parked, func(other *message) bool { return other == m })
				b.failures = 0
			case chain.Refused:
				b.failures++
				b.again = r.db.now + time.Second<<b.failures
				b.released = b.failures < maxAttempts // or it is parked again
			}
		}
		for _, key := range released {
			if b := r.db.blocked[key]; b != nil && b.released && (len(b.parked) == 0 || r.mutant == ReleaseEndsEarly) {
				r.db.trace("key %d goes on in the outbox", key)
				delete(r.db.blocked, key)
			}
		}
	})
}
