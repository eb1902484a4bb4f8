package sim

import (
	"time"

	"github.com/waybill-go/waybill/outbox"
)

const (
	blocking     = 4 // keys below it are retried without limit
	parkedOffset = outbox.ParkedBuckets
	releaseBatch = 2 // rows that one transaction moves back
)

// attempts returns how many refusals exhaust a key; 0 means no limit.
func attempts(key int) int {
	switch {
	case key < blocking:
		return 0
	case key > blocking:
		return 1
	}
	return 2
}

// block records a refusal of the head of a key, in a transaction that has the lock of
// the key's bucket if the entry is new or the key is to be parked.
func (db *database) block(head *row) {
	key := head.message.key
	b := db.blocked[key]
	if b == nil {
		b = &blocked{head: head}
		db.blocked[key] = b
		db.versions[home(key)]++
	}
	b.failures++
	b.until = db.now + min(time.Second<<b.failures, 30*time.Second)
	if b.failures == attempts(key) {
		b.parked = true
		db.setAside(key)
	}
}

// home returns the bucket of a key.
func home(key int) int16 { return int16(key % buckets) }

// setAside moves the rows of a key to their parked bucket.
func (db *database) setAside(key int) {
	n := 0
	for _, r := range db.visible() {
		if r.message.key != key || r.bucket >= parkedOffset {
			continue
		}
		if r.bucket += parkedOffset; db.mutant == ParkWithNewIDs {
			db.renumber(r)
		}
		n++
	}
	db.trace("key %d is parked with %d messages", key, n)
}

// renumber replaces a row by a copy with the next id.
func (db *database) renumber(r *row) {
	again := *r
	r.gone = true
	db.last++
	again.id = db.last
	db.rows = append(db.rows, &again)
}

// unblock deletes the entry of a key.
func (db *database) unblock(key int) {
	delete(db.blocked, key)
	if db.mutant != UnblockWithoutBump {
		db.versions[home(key)]++
	}
}

// due returns the keys of entries that are due for a retry, in a fixed order.
func (db *database) due() (due []int) {
	for key := range keys {
		if b := db.blocked[key]; b != nil && !b.parked && b.until <= db.now {
			due = append(due, key)
		}
	}
	return due
}

// operator starts a process that releases the parked keys now and then, and replays
// dead letters.
func (w *world) operator() {
	w.begin("operator", func(p *process) {
		p.operateRetries()
		p.thread(func(th *thread) {
			for {
				th.sleep(th.between(0, 5*time.Second))
				th.step("release")
				for key := range keys {
					for b := th.db.blocked[key]; b != nil && b.parked; b = th.db.blocked[key] {
						th.release(key)
					}
				}
			}
		})
	})
}

// release moves up to releaseBatch rows of a parked key back, in one transaction. The
// key stays blocked until its last row is back.
func (th *thread) release(key int) {
	t := th.db.begin(th.process)
	if th.mutant != ReleaseWithoutLock {
		th.request("release lock", func(reply func()) { th.db.lock(t, &th.db.claims[home(key)], reply) })
	}
	t.do(th, "release rows", func() {
		var back []*row
		ended := true
		for _, r := range th.db.visible() {
			switch {
			case r.message.key != key || r.bucket < parkedOffset:
			case len(back) == releaseBatch:
				ended = th.mutant == ReleaseEndsEarly
			default:
				back = append(back, r)
			}
		}
		t.onCommit = append(t.onCommit, func() {
			for _, r := range back {
				if r.bucket -= parkedOffset; th.mutant == ReleaseByReinsertion {
					th.db.renumber(r)
				}
			}
			if ended {
				th.trace("key %d is released", key)
				th.db.unblock(key)
			}
		})
	})
	t.commit(th, "release commit")
}
