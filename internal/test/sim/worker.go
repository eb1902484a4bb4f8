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
