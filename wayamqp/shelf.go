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

// A shelf holds what the broker has lent to a consumer and arranges it by key:
// a key of which something is in a worker's hands gives nothing more, and one
// whose head waits for a retry waits with it. It is pure: it neither waits nor
// sends, and its owner guards it.
type shelf struct {
	lines  map[string]*line                  // each is ready, or timed, or has something in hand
	ready  []*line                           // may be lent, oldest first
	timed  timed                             // whose heads wait for a retry
	memory map[waybill.MessageID]remembrance // what was known of lost deliveries
}

// A line is what has arrived of one key, or a message that has none.
type line struct {
	group string
	queue []*parcel // not in hand, in order of arrival
	lent  int       // how many are in hand, those of lost connections included
}

// A parcel is one delivery. It is a Delivery's Tag.
type parcel struct {
	consumer *Consumer
	session  *session
	tag      uint64 // the broker's, per session
	line     *line
	d        *waybill.Delivery
	due      time.Time // not lent before
	lent     bool
}

// A remembrance is what a message goes on with when the broker delivers it
// again after a lost connection.
type remembrance struct {
	failures int
	headers  map[string]string
	due      time.Time
	until    time.Time
}

// memoryFor is how long a lost delivery is remembered: it may have gone to
// another consumer.
const memoryFor = time.Hour

func newShelf() *shelf {
	return &shelf{lines: map[string]*line{}, memory: map[waybill.MessageID]remembrance{}}
}

// group is what must not be handled twice at once: a key, or a message.
func group(p *parcel) string {
	rec := p.d.Record
	switch {
	case rec.Key != "":
		return "key " + rec.Key
	case !rec.ID.IsZero():
		return "id " + string(rec.ID[:])
	}
	return fmt.Sprintf("tag %p %d", p.session, p.tag)
}

// add puts a new arrival on the shelf.
func (s *shelf) add(p *parcel, now time.Time) {
	name := group(p)
	l := s.lines[name]
	if l == nil {
		l = &line{group: name}
		s.lines[name] = l
	}
	p.line = l
	if m, ok := s.memory[p.d.Record.ID]; ok {
		delete(s.memory, p.d.Record.ID)
		p.d.Failures, p.d.Record.Headers, p.due = m.failures, m.headers, m.due
	}
	if l.queue = append(l.queue, p); len(l.queue) == 1 && l.lent == 0 {
		s.place(l, now)
	}
}

// place puts a line that is neither ready nor timed, and of which nothing is in
// hand, where it belongs.
func (s *shelf) place(l *line, now time.Time) {
	switch {
	case len(l.queue) == 0:
		delete(s.lines, l.group)
	case l.queue[0].due.After(now):
		heap.Push(&s.timed, l)
	default:
		s.ready = append(s.ready, l)
	}
}

// take lends up to max deliveries, oldest keys first. next is when more will
// be due; zero when nothing waits.
func (s *shelf) take(max int, now time.Time) (ds []*waybill.Delivery, next time.Time) {
	for len(s.timed) > 0 && !s.timed[0].queue[0].due.After(now) {
		s.ready = append(s.ready, heap.Pop(&s.timed).(*line))
	}
	for len(s.ready) > 0 && len(ds) < max {
		l := s.ready[0]
		s.ready[0] = nil
		s.ready = s.ready[1:]
		for len(ds) < max && len(l.queue) > 0 && (l.lent == 0 || !l.queue[0].due.After(now)) {
			p := l.queue[0]
			l.queue[0] = nil
			l.queue = l.queue[1:]
			p.lent = true
			l.lent++
			ds = append(ds, p.d)
		}
	}
	if len(s.timed) > 0 {
		next = s.timed[0].queue[0].due
	}
	return ds, next
}

// end takes p out of a worker's hands for good.
func (s *shelf) end(p *parcel, now time.Time) {
	p.lent = false
	if p.line.lent--; p.line.lent == 0 {
		s.place(p.line, now)
	}
}

// back takes p out of a worker's hands and puts it where it was, not to be lent
// before due. What is lent then is another parcel: p is settled.
func (s *shelf) back(p *parcel, failures int, due, now time.Time) {
	again := *p
	again.d = &waybill.Delivery{Record: p.d.Record, Failures: failures, Tag: &again}
	again.due, again.lent = due, false
	at, _ := slices.BinarySearchFunc(p.line.queue, p.tag, func(q *parcel, tag uint64) int { return cmp.Compare(q.tag, tag) })
	p.line.queue = slices.Insert(p.line.queue, at, &again)
	s.end(p, now)
}

// lose takes p out of a worker's hands after its connection was lost. What is
// known of it goes over to its copy, whether that has arrived or will.
func (s *shelf) lose(p *parcel, failures int, due, now time.Time) {
	rec := p.d.Record
	if failures > 0 && !rec.ID.IsZero() {
		at := slices.IndexFunc(p.line.queue, func(q *parcel) bool { return q.d.Record.ID == rec.ID })
		if at >= 0 {
			q := p.line.queue[at]
			q.d.Failures, q.d.Record.Headers, q.due = failures, rec.Headers, due
		} else {
			s.remember(rec, failures, due, now)
		}
	}
	s.end(p, now)
}

func (s *shelf) remember(rec *waybill.Record, failures int, due, now time.Time) {
	s.memory[rec.ID] = remembrance{failures, rec.Headers, due, now.Add(memoryFor)}
}

// clear empties the shelf after the connection was lost: the broker delivers
// all of it again. What is in a worker's hands stays.
func (s *shelf) clear(now time.Time) {
	maps.DeleteFunc(s.memory, func(_ waybill.MessageID, m remembrance) bool { return now.After(m.until) })
	for name, l := range s.lines {
		for _, p := range l.queue {
			if p.d.Failures > 0 && !p.d.Record.ID.IsZero() {
				s.remember(p.d.Record, p.d.Failures, p.due, now)
			}
		}
		l.queue = nil
		if l.lent == 0 {
			delete(s.lines, name)
		}
	}
	s.ready, s.timed = nil, nil
}

// waiting counts what is behind heads that wait for a retry, heads included.
func (s *shelf) waiting() (n int) {
	for _, l := range s.timed {
		n += len(l.queue)
	}
	return n
}

// timed is a heap of lines by when their heads are due.
type timed []*line

func (t timed) Len() int           { return len(t) }
func (t timed) Less(i, j int) bool { return t[i].queue[0].due.Before(t[j].queue[0].due) }
func (t timed) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timed) Push(x any)        { *t = append(*t, x.(*line)) }
func (t *timed) Pop() any {
	old := *t
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	return last
}
