package sim

import (
	"slices"
	"time"
)

// leaseTime is how long a row of the retry queue belongs to a worker.
const leaseTime = 10 * time.Second

// maxRetries is how often a handler is tried again.
const maxRetries = 2

// A retry is a row of the retry queue. The rows of a key are handled in order.
type retry struct {
	message  *message
	failures int
	until    time.Duration // end of its delay or lease
	parked   bool          // until it is released
	lease    int           // counts its leases
}

// A deadLetter is a message that is tried no more.
type deadLetter struct {
	message  *message
	retrying bool // a replay is in the retry queue
}

// A destination is where a failed message goes, or one behind it.
type destination struct {
	failed, parked, dead bool
	delay                time.Duration
}

// waits returns the row of a message, or nil.
func (db *database) waits(m *message) *retry {
	for _, r := range db.retries {
		if r.message == m {
			return r
		}
	}
	return nil
}

// contains reports whether the retry queue has a message, or one of its key.
func (db *database) contains(m *message) bool {
	return slices.ContainsFunc(db.retries, func(r *retry) bool { return r.message.key == m.key })
}

// add puts a message of the broker into the retry queue, unless it is there, or among the
// dead letters.
func (db *database) add(m *message, failures int, to destination) {
	if db.waits(m) == nil {
		r := &retry{message: m, failures: failures}
		db.retries = append(db.retries, r)
		db.put(r, to)
	}
}

// move settles a lease.
func (db *database) move(r *retry, lease int, to destination) {
	if db.waits(r.message) == r && r.lease == lease {
		db.put(r, to)
	}
}

func (db *database) put(r *retry, to destination) {
	if to.failed {
		r.failures++
	}
	r.until, r.parked = db.now+to.delay, to.parked
	r.lease++ // it has ended
	if !to.dead {
		return
	}
	db.remove(r)
	r.message.buried = true
	db.trace("message %d of key %d is a dead letter", r.message.no, r.message.key)
	for _, l := range db.letters {
		if l.message == r.message {
			l.retrying = false
			return
		}
	}
	db.letters = append(db.letters, &deadLetter{message: r.message})
}

func (db *database) remove(r *retry) {
	db.retries = slices.DeleteFunc(db.retries, func(other *retry) bool { return other == r })
}

// leaseHeads leases the due heads of keys.
func (db *database) leaseHeads() (heads []leased) {
	var seen [keys]bool
	for _, r := range db.retries {
		if key := r.message.key; !seen[key] && !r.parked && r.until <= db.now {
			r.lease++
			r.until = db.now + leaseTime
			heads = append(heads, leased{r, r.lease})
		}
		seen[r.message.key] = true
	}
	return heads
}

// done ends a lease with success: the message leaves the retry queue and the dead letters.
func (db *database) done(r *retry, lease int) {
	if db.waits(r.message) == r && r.lease == lease {
		db.remove(r)
		db.letters = slices.DeleteFunc(db.letters, func(l *deadLetter) bool { return l.message == r.message })
	}
}

// operateRetries starts the operator's work on what workers could not handle.
func (p *process) operateRetries() {
	p.thread(func(th *thread) {
		for {
			th.sleep(th.between(0, 5*time.Second))
			if len(th.db.letters) > 0 {
				th.replay()
			}
			if slices.ContainsFunc(th.db.retries, func(r *retry) bool { return r.parked }) {
				th.request("store release", func(reply func()) {
					for _, r := range th.db.retries {
						r.parked = false
					}
					reply()
				})
			}
		}
	})
}

// replay puts the dead letters into the retry queue again, in one transaction.
func (th *thread) replay() {
	t := th.db.begin(th.process)
	t.do(th, "store replay", func() {
		var chosen []*deadLetter
		for _, l := range th.db.letters {
			if !l.retrying {
				chosen = append(chosen, l)
			}
		}
		if th.mutant == ReplayOutsideTransaction {
			th.db.letters = slices.DeleteFunc(th.db.letters, func(l *deadLetter) bool { return slices.Contains(chosen, l) })
		}
		t.onCommit = append(t.onCommit, func() {
			for _, l := range chosen {
				l.retrying = true
				if th.db.waits(l.message) == nil {
					th.db.retries = append(th.db.retries, &retry{message: l.message})
				}
			}
		})
	})
	t.commit(th, "store replay commit")
}
