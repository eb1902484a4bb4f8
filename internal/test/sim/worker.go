package sim

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/keyorder"
)

// worker starts a process with an inbox, which handles three messages at once.
func (w *world) worker(name string) {
	w.begin(name, func(p *process) {
		c := &consuming{process: p, link: p.broker.link(p)}
		c.forget()
		c.link.deliver, c.link.lost = c.arrived, c.forget
		p.thread(func(th *thread) {
			for {
				if !c.link.alive {
					c.link.connect(th)
					c.link.consume()
				}
				th.sleep(time.Second)
			}
		})
		for range 3 {
			p.thread(func(th *thread) {
				for {
					if d := c.take(th); d != nil {
						c.handle(th, d)
					}
				}
			})
		}
	})
}

// consuming is a worker's state.
type consuming struct {
	*process
	link     *link
	queue    *keyorder.HandleQueue
	idle     []*thread
	retrying map[string][]*waybill.Delivery // by key: a head that waits for its retry, and the deliveries behind it
}

// A tag identifies one delivery of a parcel.
type tag struct {
	parcel *parcel
	life   int // of the link at the delivery
}

// forget drops the deliveries of a lost connection. Running handlers continue.
func (c *consuming) forget() {
	c.queue, c.retrying = keyorder.NewHandleQueue(0), map[string][]*waybill.Delivery{}
}

// arrived adds the delivery of a parcel.
func (c *consuming) arrived(p *parcel) {
	d := &waybill.Delivery{Record: &waybill.Record{Key: "k" + strconv.Itoa(p.message.key)}, Tag: tag{p, c.link.life}}
	c.add(d)
}

func (c *consuming) add(d *waybill.Delivery) {
	if waiting, ok := c.retrying[d.Record.Key]; ok {
		c.retrying[d.Record.Key] = append(waiting, d)
		return
	}
	c.queue.Add(d)
	c.call()
}

// call wakes an idle thread.
func (c *consuming) call() {
	if len(c.idle) > 0 {
		th := c.idle[0]
		c.idle = c.idle[1:]
		c.after(0, th.resume)
	}
}

func (c *consuming) take(th *thread) *waybill.Delivery {
	if d := c.queue.Take(); d != nil {
		return d
	}
	c.idle = append(c.idle, th)
	th.wait()
	return nil
}

// handle runs a delivery's handler with its inbox entry in one transaction, and
// settles it.
func (c *consuming) handle(th *thread, d *waybill.Delivery) {
	of := d.Tag.(tag)
	p, m := of.parcel, of.parcel.message
	if th.mutant == AckBeforeCommit {
		c.link.ack(p, false)
	}
	t := th.db.begin(th.process)
	fresh, failed := false, false
	th.request("inbox insert", func(reply func()) {
		entries := t
		if th.mutant == InboxOutsideTransaction {
			entries = th.db.begin(th.process)
		}
		th.db.remember(entries, p.id, func(f bool) {
			if fresh = f; entries != t {
				entries.end(true)
			}
			reply()
		})
	})
	switch {
	case t.over:
		failed = true
	case !fresh:
		t.rollback(th, "inbox rollback")
	default:
		failed = th.chance(0.05) && !th.healing
		if !failed {
			failed = !t.do(th, "handler's effect", func() {
				t.onCommit = append(t.onCommit, func() { th.laws.effect(m) })
			})
			th.sleep(th.between(0, 100*time.Millisecond))
		}
		if failed {
			t.rollback(th, "handler's rollback")
		} else {
			failed = !t.commit(th, "handler's commit")
		}
	}
	th.step("settle delivery")
	switch {
	case of.life != c.link.life: // the connection has ended: the broker delivers it again
	case failed:
		c.retry(th, d)
	default:
		c.queue.Succeeded(d)
		c.queue.Settled(1)
		c.call()
		if th.mutant != AckBeforeCommit {
			c.link.ack(p, th.mutant == AckOverUncommitted)
		}
	}
}

// retry delays a failed delivery, and the deliveries behind it in its key.
func (c *consuming) retry(th *thread, d *waybill.Delivery) {
	key, life := d.Record.Key, c.link.life
	back := append([]*waybill.Delivery{d}, c.queue.Failed(d)...)
	back = append(back, c.queue.Forget(d)...)
	c.queue.Settled(len(back))
	if th.mutant == RetryBehind {
		back = append(back[1:], d)
	}
	c.retrying[key] = back
	th.after(th.between(100*time.Millisecond, 2*time.Second), func() {
		if c.link.life != life || !c.up {
			return
		}
		again := c.retrying[key]
		delete(c.retrying, key)
		if th.mutant != RetryBehind {
			slices.SortFunc(again, func(a, b *waybill.Delivery) int { return cmp.Compare(a.Tag.(tag).parcel.no, b.Tag.(tag).parcel.no) })
		}
		for _, d := range again {
			c.add(d)
		}
	})
}
