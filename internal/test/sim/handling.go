package sim

import (
	"time"

	"github.com/waybill-go/waybill"
)

// The outcome of a handler.
type outcome int

const (
	succeeded outcome = iota
	failed
	unavailable // its transaction was lost
)

// handle runs a delivery's handler, and settles it.
func (c *consuming) handle(th *thread, d *waybill.Delivery) {
	of, ofBroker := d.Tag.(tag)
	if ofBroker && th.mutant == AckBeforeCommit {
		c.link.ack(of.parcel, false)
	}
	o := th.handler(messageOf(d))
	th.step("settle delivery")
	switch {
	case c.lost(d):
		c.settled(d)
	case o == unavailable:
		c.wait(th, d)
	case o == failed:
		c.fail(th, d)
	case ofBroker:
		c.queue.Succeeded(d)
		c.call()
		if th.mutant != AckBeforeCommit {
			c.link.ack(of.parcel, th.mutant == AckOverUncommitted)
		}
		c.settled(d)
	default:
		of := d.Tag.(leased)
		th.request("store ack", func(reply func()) { th.db.done(of.row, of.lease); reply() })
		c.again.Succeeded(d)
		c.call()
	}
}

// handler runs the handler of a message with its inbox entry in one transaction.
func (th *thread) handler(m *message) outcome {
	t := th.db.begin(th.process)
	t.idle()
	fresh := false
	th.request("inbox insert", func(reply func()) {
		entries := t
		if th.mutant == InboxOutsideTransaction {
			entries = th.db.begin(th.process)
		}
		th.db.remember(entries, m.no, func(f bool) {
			if fresh = f; entries != t {
				entries.end(true)
			}
			reply()
		})
	})
	switch {
	case t.over:
		return unavailable
	case !fresh:
		t.rollback(th, "inbox rollback")
		return succeeded
	case !th.healing && (th.chance(0.05) || m.no%9 == 0 && th.now < time.Duration(20+m.no%40)*time.Second):
		t.rollback(th, "handler's rollback")
		return failed
	}
	if !t.do(th, "handler's effect", func() {
		t.onCommit = append(t.onCommit, func() { th.laws.effect(m) })
	}) {
		return unavailable
	}
	th.sleep(th.between(0, 100*time.Millisecond))
	if !t.commit(th, "handler's commit") {
		return unavailable
	}
	return succeeded
}

// wait keeps d for another attempt after a pause.
func (c *consuming) wait(th *thread, d *waybill.Delivery) {
	th.sleep(50 * time.Millisecond)
	if c.lost(d) {
		c.settled(d)
		return
	}
	q := c.again
	if _, ok := d.Tag.(tag); ok {
		q = c.queue
	}
	q.Return(d)
	c.call()
}

// fail moves a failed delivery, and those behind it in its key. Without retries left, even
// keys are skipped and odd ones parked.
func (c *consuming) fail(th *thread, d *waybill.Delivery) {
	key := messageOf(d).key
	to := destination{failed: true, delay: th.between(100*time.Millisecond, 2*time.Second)}
	if d.Failures >= maxRetries {
		to = destination{failed: true, dead: key%2 == 0, parked: key%2 == 1}
	}
	if _, ok := d.Tag.(leased); ok || to.dead {
		c.move(d, to)
		return
	}
	behind := c.queue.Failed(d)
	if th.mutant != RetryBehind {
		c.move(d, to)
	}
	for _, d := range behind {
		c.move(d, destination{})
	}
	if th.mutant == RetryBehind {
		c.move(d, to)
	}
	c.queue.Forget(d)
}
