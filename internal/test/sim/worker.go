package sim

import (
	"strconv"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/keyorder"
)

// worker starts a process with an inbox and a retry queue, which handles three messages at
// once.
func (w *world) worker(name string) {
	w.begin(name, func(p *process) {
		c := &consuming{process: p, link: p.broker.link(p), again: keyorder.NewHandleQueue(0), inFlight: map[string]int{}, diverted: map[int]int{}}
		c.queue = keyorder.NewHandleQueue(0)
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
		for _, loop := range []func(th *thread){c.intake, c.retries, c.store, c.handlers, c.handlers, c.handlers} {
			p.thread(func(th *thread) {
				for {
					loop(th)
				}
			})
		}
	})
}

// consuming is a worker's state.
type consuming struct {
	*process
	link     *link
	queue    *keyorder.HandleQueue // of the broker's deliveries
	again    *keyorder.HandleQueue // of the retry queue's
	idle     []*thread
	arrivals mailbox[*waybill.Delivery]
	inFlight map[string]int // by key, also of lost connections
	moves    mailbox[move]
	lastMove int         // number of the last move
	stored   int         // number of the last move that is stored
	diverted map[int]int // by key with messages in the retry queue: number of its last move
}

// A tag identifies one delivery of a parcel.
type tag struct {
	parcel *parcel
	life   int // of the link at the delivery
}

// leased is one delivery of the retry queue.
type leased struct {
	row   *retry
	lease int
}

// A move is a message on its way to the retry queue or the dead letters.
type move struct {
	d  *waybill.Delivery
	to destination
	no int
}

// A mailbox passes values to one thread.
type mailbox[T any] struct {
	values []T
	reader *thread
}

func (b *mailbox[T]) put(v T) {
	b.values = append(b.values, v)
	b.wake()
}

func (b *mailbox[T]) wake() {
	if th := b.reader; th != nil {
		b.reader = nil
		th.after(0, th.resume)
	}
}

func (b *mailbox[T]) wait(th *thread) {
	b.reader = th
	th.wait()
}

func (b *mailbox[T]) take(th *thread) (all []T) {
	for len(b.values) == 0 {
		b.wait(th)
	}
	all, b.values = b.values, nil
	return all
}

// forget drops the deliveries of a lost connection. Running handlers continue.
func (c *consuming) forget() {
	c.arrivals.values = nil
	for _, d := range c.queue.Rest() {
		c.settled(d)
	}
	c.queue = keyorder.NewHandleQueue(0)
}

// arrived takes in the delivery of a parcel.
func (c *consuming) arrived(p *parcel) {
	c.arrivals.put(&waybill.Delivery{Record: recordOf(p.message), Redelivered: p.redelivered, Tag: tag{parcel: p, life: c.link.life}})
}

func recordOf(m *message) *waybill.Record { return &waybill.Record{Key: "k" + strconv.Itoa(m.key)} }

func messageOf(d *waybill.Delivery) *message {
	if of, ok := d.Tag.(leased); ok {
		return of.row.message
	}
	return d.Tag.(tag).parcel.message
}

// lost reports whether d was delivered by a connection that has ended: the broker delivers
// it again.
func (c *consuming) lost(d *waybill.Delivery) bool {
	of, ok := d.Tag.(tag)
	return ok && of.life != c.link.life
}

// receive returns the arrived messages of keys that have none in flight.
func (c *consuming) receive(th *thread) (ds []*waybill.Delivery) {
	var rest []*waybill.Delivery
	for _, d := range c.arrivals.take(th) {
		if c.inFlight[d.Record.Key] > 0 {
			rest = append(rest, d)
		} else {
			ds = append(ds, d)
		}
	}
	for _, d := range ds {
		c.inFlight[d.Record.Key]++
	}
	if c.arrivals.values = rest; len(ds) == 0 {
		c.arrivals.wait(th)
	}
	return ds
}

// settled ends a delivery of the broker, whose key may be received again.
func (c *consuming) settled(d *waybill.Delivery) {
	c.inFlight[d.Record.Key]--
	c.arrivals.wake()
}

// intake asks the retry queue which of the arrived messages belong there.
func (c *consuming) intake(th *thread) {
	ds := c.receive(th)
	if len(ds) == 0 {
		return
	}
	stored, contained := c.stored, make([]bool, len(ds))
	th.request("store check", func(reply func()) {
		for i, d := range ds {
			contained[i] = th.mutant != DivertedKeysForgotten && th.db.contains(messageOf(d))
		}
		reply()
	})
	for i, d := range ds {
		switch {
		case c.lost(d):
			c.settled(d)
		case contained[i] || d.Redelivered || c.waits(messageOf(d).key, stored):
			c.move(d, destination{})
		default:
			c.queue.Add(d)
			c.call()
		}
	}
}

// waits reports whether messages of a key wait that this worker has moved. A query that
// began after its last move was stored would have found them.
func (c *consuming) waits(key, stored int) bool {
	last, waits := c.diverted[key]
	if waits && last <= stored {
		delete(c.diverted, key)
		return false
	}
	return waits
}

func (c *consuming) move(d *waybill.Delivery, to destination) {
	c.lastMove++
	if !to.dead {
		c.diverted[messageOf(d).key] = c.lastMove
	}
	c.moves.put(move{d, to, c.lastMove})
}

// store stores moves in order, and acknowledges those of the broker.
func (c *consuming) store(th *thread) {
	ms := c.moves.take(th)
	ack := func() {
		for _, m := range ms {
			if of, ok := m.d.Tag.(tag); ok && !c.lost(m.d) {
				c.link.ack(of.parcel, false)
			}
		}
	}
	if th.mutant == AckBeforeStore {
		ack()
		th.sleep(5 * time.Millisecond)
	}
	th.request("store add", func(reply func()) {
		for _, m := range ms {
			if of, ok := m.d.Tag.(leased); ok {
				th.db.move(of.row, of.lease, m.to)
			} else {
				th.db.add(messageOf(m.d), m.d.Failures, m.to)
			}
		}
		reply()
	})
	c.stored = ms[len(ms)-1].no
	th.step("stored")
	ack()
	for _, m := range ms {
		if _, ok := m.d.Tag.(leased); ok {
			c.again.Succeeded(m.d)
		} else {
			if m.to.dead && !c.lost(m.d) {
				c.queue.Succeeded(m.d) // its key goes on
			}
			c.settled(m.d)
		}
		c.call()
	}
}

// retries receives from the retry queue.
func (c *consuming) retries(th *thread) {
	th.sleep(th.between(100*time.Millisecond, 2*time.Second))
	if len(th.db.retries) == 0 {
		return
	}
	var all []leased
	th.request("claim retries", func(reply func()) { all = th.db.leaseHeads(); reply() })
	for _, of := range all {
		c.again.Add(&waybill.Delivery{Record: recordOf(of.row.message), Failures: of.row.failures, Tag: of})
		c.call()
	}
}

// call wakes an idle thread.
func (c *consuming) call() {
	if len(c.idle) > 0 {
		th := c.idle[0]
		c.idle = c.idle[1:]
		c.after(0, th.resume)
	}
}

func (c *consuming) handlers(th *thread) {
	for _, q := range []*keyorder.HandleQueue{c.queue, c.again} {
		if d := q.Take(); d != nil {
			c.handle(th, d)
			return
		}
	}
	c.idle = append(c.idle, th)
	th.wait()
}

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
