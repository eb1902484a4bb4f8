package sim

import (
	"slices"
	"time"
)

// dispatcher starts a process that runs the given number of transactions.
func (w *world) dispatcher(name string, transactions int) {
	w.begin(name, func(p *process) {
		p.thread(func(th *thread) {
			for ; transactions > 0; transactions-- {
				th.sleep(th.between(0, 2*time.Second))
				th.dispatch()
			}
			th.laws.dispatchers--
			th.wait()
		})
	})
}

// dispatch runs one transaction.
func (th *thread) dispatch() {
	var messages []*message
	var locks []int16
	for range 1 + th.rng.IntN(3) {
		m := th.laws.message(th.rng.IntN(keys))
		messages = append(messages, m)
		if bucket := int16(m.key % buckets); !slices.Contains(locks, bucket) {
			locks = append(locks, bucket)
		}
	}
	slices.Sort(locks)
	t := th.db.begin(th.process)
	if th.mutant == NoDispatchLock {
		locks = nil
	}
	for _, bucket := range locks {
		th.request("dispatch lock", func(reply func()) { th.db.lock(t, &th.db.dispatch[bucket], reply) })
	}
	ok := t.do(th, "dispatch insert", func() { th.db.insert(t, messages) })
	th.sleep(th.between(0, 500*time.Millisecond))
	if !ok || th.chance(0.15) {
		t.rollback(th, "dispatch rollback")
		return
	}
	t.commit(th, "dispatch commit")
}
