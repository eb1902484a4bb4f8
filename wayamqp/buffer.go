package wayamqp

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
)

// A deliveryBuffer holds the consumer's unsettled messages by key: a key with
// messages in flight yields no more, and messages behind a head that waits for a
// retry wait too. It does no I/O and no locking; its owner guards it.
type deliveryBuffer struct {
	queues map[string]*keyQueue             // each is in ready, in timed, or has messages in flight
	ready  []*keyQueue                      // deliverable, oldest first
	timed  timed                            // with heads that wait for a retry
	memory map[waybill.MessageID]retryState // of deliveries lost with their connection
}

// A keyQueue holds the buffered messages of one key, or one message without a key.
type keyQueue struct {
	group    string
	queue    []*delivery // not in flight, in order of arrival
	inFlight int         // number in flight, including those of lost connections
}

// A delivery is one message as the broker delivered it. It is the Tag of its
// waybill.Delivery.
type delivery struct {
	consumer *Consumer
	session  *session
	tag      uint64 // the delivery tag, per session
	keys     *keyQueue
	d        *waybill.Delivery
	due      time.Time // earliest time of the next attempt
	inFlight bool
}

// A retryState is a message's failures and next attempt, kept over a lost
// connection until the broker delivers the message again.
type retryState struct {
	failures int
	headers  map[string]string
	due      time.Time
	until    time.Time
}

// memoryFor is the lifetime of a retryState: the broker may have delivered the
// message to another consumer.
const memoryFor = time.Hour

func newDeliveryBuffer() *deliveryBuffer {
	return &deliveryBuffer{queues: map[string]*keyQueue{}, memory: map[waybill.MessageID]retryState{}}
}

// group returns the unit that is handled by one worker at a time: the key, or the
// message itself.
func group(p *delivery) string {
	rec := p.d.Record
	switch {
	case rec.Key != "":
		return "key " + rec.Key
	case !rec.ID.IsZero():
		return "id " + string(rec.ID[:])
	}
	return fmt.Sprintf("tag %p %d", p.session, p.tag)
}

// add puts a new arrival into the buffer.
func (s *deliveryBuffer) add(p *delivery, now time.Time) {
	name := group(p)
	l := s.queues[name]
	if l == nil {
		l = &keyQueue{group: name}
		s.queues[name] = l
	}
	p.keys = l
	if m, ok := s.memory[p.d.Record.ID]; ok {
		delete(s.memory, p.d.Record.ID)
		p.d.Failures, p.d.Record.Headers, p.due = m.failures, m.headers, m.due
	}
	if l.queue = append(l.queue, p); len(l.queue) == 1 && l.inFlight == 0 {
		s.schedule(l, now)
	}
}

// schedule files a keyQueue without messages in flight, which is neither ready nor
// timed: under ready or timed, or nowhere if it is empty.
func (s *deliveryBuffer) schedule(l *keyQueue, now time.Time) {
	switch {
	case len(l.queue) == 0:
		delete(s.queues, l.group)
	case l.queue[0].due.After(now):
		heap.Push(&s.timed, l)
	default:
		s.ready = append(s.ready, l)
	}
}

// take returns up to max deliveries, longest-ready keys first. next is the earliest
// retry time, zero if no key waits.
func (s *deliveryBuffer) take(max int, now time.Time) (ds []*waybill.Delivery, next time.Time) {
	for len(s.timed) > 0 && !s.timed[0].queue[0].due.After(now) {
		s.ready = append(s.ready, heap.Pop(&s.timed).(*keyQueue))
	}
	for len(s.ready) > 0 && len(ds) < max {
		l := s.ready[0]
		s.ready[0] = nil
		s.ready = s.ready[1:]
		for len(ds) < max && len(l.queue) > 0 && (l.inFlight == 0 || !l.queue[0].due.After(now)) {
			p := l.queue[0]
			l.queue[0] = nil
			l.queue = l.queue[1:]
			p.inFlight = true
			l.inFlight++
			ds = append(ds, p.d)
		}
	}
	if len(s.timed) > 0 {
		next = s.timed[0].queue[0].due
	}
	return ds, next
}

// end marks p as no longer in flight.
func (s *deliveryBuffer) end(p *delivery, now time.Time) {
	p.inFlight = false
	if p.keys.inFlight--; p.keys.inFlight == 0 {
		s.schedule(p.keys, now)
	}
}

// back returns p to its position in the queue, not to be delivered before due. The
// queue gets a copy, because p itself is settled.
func (s *deliveryBuffer) back(p *delivery, failures int, due, now time.Time) {
	again, d := *p, *p.d
	again.d, d.Failures, d.Tag = &d, failures, &again
	again.due, again.inFlight = due, false
	at, _ := slices.BinarySearchFunc(p.keys.queue, p.tag, func(q *delivery, tag uint64) int { return cmp.Compare(q.tag, tag) })
	p.keys.queue = slices.Insert(p.keys.queue, at, &again)
	s.end(p, now)
}

// lose ends p, whose connection was lost. Its retry state goes to its redelivered
// copy in the queue, or to memory until the copy arrives.
func (s *deliveryBuffer) lose(p *delivery, failures int, due, now time.Time) {
	rec := p.d.Record
	if failures > 0 && !rec.ID.IsZero() {
		at := slices.IndexFunc(p.keys.queue, func(q *delivery) bool { return q.d.Record.ID == rec.ID })
		if at >= 0 {
			q := p.keys.queue[at]
			q.d.Failures, q.d.Record.Headers, q.due = failures, rec.Headers, due
		} else {
			s.remember(rec, failures, due, now)
		}
	}
	s.end(p, now)
}

func (s *deliveryBuffer) remember(rec *waybill.Record, failures int, due, now time.Time) {
	s.memory[rec.ID] = retryState{failures, rec.Headers, due, now.Add(memoryFor)}
}

// clear empties the queues after the connection was lost: the broker redelivers
// their messages. Messages in flight stay counted.
func (s *deliveryBuffer) clear(now time.Time) {
	maps.DeleteFunc(s.memory, func(_ waybill.MessageID, m retryState) bool { return now.After(m.until) })
	for name, l := range s.queues {
		for _, p := range l.queue {
			if p.d.Failures > 0 && !p.d.Record.ID.IsZero() {
				s.remember(p.d.Record, p.d.Failures, p.due, now)
			}
		}
		l.queue = nil
		if l.inFlight == 0 {
			delete(s.queues, name)
		}
	}
	s.ready, s.timed = nil, nil
}

// waiting counts the messages of keys whose heads wait for a retry.
func (s *deliveryBuffer) waiting() (n int) {
	for _, l := range s.timed {
		n += len(l.queue)
	}
	return n
}

// timed is a heap of keyQueues by when their heads are due.
type timed []*keyQueue

func (t timed) Len() int           { return len(t) }
func (t timed) Less(i, j int) bool { return t[i].queue[0].due.Before(t[j].queue[0].due) }
func (t timed) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timed) Push(x any)        { *t = append(*t, x.(*keyQueue)) }
func (t *timed) Pop() any {
	old := *t
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	return last
}
