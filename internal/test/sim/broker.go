package sim

import (
	"errors"
	"slices"
	"time"
)

// heartbeats is the silence after which the broker drops a connection.
const heartbeats = 15 * time.Second

const prefetch = 8

// broker models RabbitMQ with one durable queue that has a single active consumer. It
// confirms stored messages, and may lose unconfirmed ones in a restart.
type broker struct {
	*world
	queue     []*parcel
	last      int // number of the last parcel
	links     []*link
	consumers []*link // the first is active
	refusing  map[int]time.Duration
	unbound   time.Duration // until then messages are unroutable
}

// A parcel is one message in the queue.
type parcel struct {
	no          int
	id          int // the message's id
	message     *message
	confirmed   bool
	to          *link // the consumer that has it unacknowledged, or nil
	redelivered bool
}

// A link is a process's connection.
type link struct {
	*broker
	process *process
	alive   bool
	life    int           // counts its connections
	arrives time.Duration // arrival time of the last message sent
	open    []*flight
	deliver func(p *parcel) // of a consumer: receives a message
	lost    func()          // of a consumer: called when the connection ends
}

// A flight is an unanswered record.
type flight struct {
	p *publishing
	i int
}

// link returns a connection of p that is not open yet.
func (b *broker) link(p *process) *link {
	l := &link{broker: b, process: p}
	b.links = append(b.links, l)
	p.ends = append(p.ends, func() {
		l.cut()
		b.links = slices.DeleteFunc(b.links, func(other *link) bool { return other == l })
	})
	return l
}

// connect opens the connection, unless it is open.
func (l *link) connect(th *thread) {
	for !l.alive {
		th.request("connect", func(reply func()) { l.alive = true; reply() })
	}
}

// cut ends the connection. Messages and answers in transit are lost.
func (l *link) cut() {
	if !l.alive {
		return
	}
	l.alive = false
	l.life++
	open := l.open
	l.open = nil
	for _, f := range open {
		f.p.answered(f.i, errCut)
	}
	for _, p := range l.queue {
		if p.to == l {
			p.to, p.redelivered = nil, true
		}
	}
	l.consumers = slices.DeleteFunc(l.consumers, func(other *link) bool { return other == l })
	if l.lost != nil {
		l.lost()
	}
	l.push()
}

// silent drops the connections of a process that is frozen for d, if that is too long.
func (b *broker) silent(p *process, d time.Duration) {
	if d < heartbeats {
		return
	}
	b.after(heartbeats, func() {
		for _, l := range slices.Clone(b.links) {
			if l.process == p && p.frozen > b.now {
				l.cut()
			}
		}
	})
}

// restart cuts all connections, and drops some unconfirmed messages.
func (b *broker) restart() {
	b.trace("the broker is restarted")
	b.queue = slices.DeleteFunc(b.queue, func(p *parcel) bool { return !p.confirmed && b.chance(0.5) })
	for _, l := range slices.Clone(b.links) {
		l.cut()
	}
}

var errRefused, errUnroutable = errors.New("the queue is full"), errors.New("no queue is bound")

// publish sends a message and answers p.
func (l *link) publish(p *publishing, i int, m *message) {
	if !l.alive {
		p.answered(i, errCut)
		return
	}
	id := m.no
	if l.mutant == IDFromRelay {
		id = l.laws.anotherID()
	}
	f := &flight{p, i}
	l.open = append(l.open, f)
	l.arrives = max(l.arrives, l.now+l.between(100*time.Microsecond, 5*time.Millisecond))
	life := l.life
	l.after(l.arrives-l.now, func() {
		if l.life != life {
			return // lost in transit
		}
		var err error
		var stored *parcel
		switch {
		case l.now < l.unbound:
			if err = errUnroutable; l.mutant == ReturnsNotDrained {
				err = nil
			}
		case l.now < l.refusing[m.key] && l.chance(0.5):
			err = errRefused
		default:
			l.broker.last++
			stored = &parcel{no: l.broker.last, id: id, message: m}
			l.queue = append(l.queue, stored)
			l.trace("%s: message %d of key %d is stored", l.process.name, m.no, m.key)
			l.laws.stored(m, id)
			l.push()
		}
		l.after(l.between(100*time.Microsecond, 10*time.Millisecond), func() {
			if l.life != life {
				return
			}
			if stored != nil {
				stored.confirmed = true
			}
			l.after(l.between(100*time.Microsecond, 5*time.Millisecond), func() {
				if at := slices.Index(l.open, f); at >= 0 {
					l.open = slices.Delete(l.open, at, at+1)
					p.answered(i, err)
				}
			})
		})
	})
}

// consume makes l a consumer.
func (l *link) consume() {
	l.consumers = append(l.consumers, l)
	l.push()
}

// push delivers messages to the active consumer, up to its prefetch.
func (b *broker) push() {
	if len(b.consumers) == 0 {
		return
	}
	l, held := b.consumers[0], 0
	for _, p := range b.queue {
		if p.to == l {
			held++
		}
	}
	for _, p := range b.queue {
		if held >= prefetch {
			return
		}
		if p.to != nil {
			continue
		}
		p.to = l
		held++
		life := l.life
		l.arrives = max(l.arrives, l.now+l.between(100*time.Microsecond, 2*time.Millisecond))
		l.after(l.arrives-l.now, func() {
			if l.life == life {
				l.trace("%s: message %d of key %d is delivered", l.process.name, p.message.no, p.message.key)
				l.laws.delivered(p.message)
				l.deliver(p)
			}
		})
	}
}

// ack acknowledges a delivery, with multiple also all earlier ones.
func (l *link) ack(p *parcel, multiple bool) {
	life := l.life
	l.after(l.between(100*time.Microsecond, 5*time.Millisecond), func() {
		if l.life != life {
			return
		}
		l.queue = slices.DeleteFunc(l.queue, func(other *parcel) bool {
			return other.to == l && (other == p || multiple && other.no < p.no)
		})
		l.push()
	})
}
