package waytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// shortLease is the lease of a receiver that lets its leases end.
const shortLease = 100 * time.Millisecond

// A queueModel is a model of a queue and its receivers: the waiting messages, and the
// deliveries in flight to each receiver.
type queueModel[TX any] struct {
	*fixture[TX]
	*waitingModel
	out        *outbox.Outbox[TX]
	receivers  []Transport // the last has the short lease, if it can be chosen
	next       int
	failures   map[order]int
	handled    map[order]string    // the header that a failed attempt has added
	resting    map[order]time.Time // refused, to come again not before then
	deliveries []*loan
	unsure     bool // a claim took longer than the short lease and failed: it may have leased messages
}

// A loan is a delivery that is not settled. Its lease ends between two moments.
type loan struct {
	*waybill.Delivery
	by       int
	order    order
	from, to time.Time
	lost     bool // the message was delivered again meanwhile, or is settled
	dead     bool // the receiver has died
}

// The law of queues, for several receivers that settle their deliveries in any way
// and order: each key comes in order and to one receiver at a time; a refused or
// delayed message comes when it is due; a lease ends unless it is renewed; a
// delivery with a lost lease settles nothing; a transaction that was rolled back
// sends nothing; in the end each message was acknowledged once.
func anyScheduleOfReceiversKeepsTheOrder[TX any](t *testing.T, s *fixture[TX]) {
	s.queue("q", 0) // or there are none
	queues := 0
	rapid.Check(t, often(40, func(rt *rapid.T) {
		queues++
		name := fmt.Sprint("q", queues) // a failed check leaves its messages in another queue
		m := &queueModel[TX]{
			fixture: s, waitingModel: newWaitingModel(), failures: map[order]int{}, handled: map[order]string{}, resting: map[order]time.Time{},
			out: s.outbox(outbox.Config{To: name, Queues: map[string]string{name: name}}),
		}
		m.receivers = []Transport{s.queue(name, 0), s.queue(name, 0)}
		if hasty, err := s.Queue(name, shortLease); err != nil {
			rt.Fatal(err)
		} else if hasty.LeaseTime() == shortLease {
			m.receivers = append(m.receivers, hasty)
		}
		actions := map[string]func(*rapid.T){
			"dispatch":     m.dispatch,
			"send":         m.send,
			"send delayed": m.sendDelayed,
			"receive":      m.receive,
			"receive more": m.receive, // twice as often
			"acknowledge":  m.ack,
			"ack more":     m.ack,
			"retry":        m.retry,
			"release":      m.release,
			"renew":        m.renew,
			"stranger":     m.stranger,
			"oversleep":    m.oversleep,
			"die":          m.die,
		}
		for name, act := range actions {
			actions[name] = func(rt *rapid.T) {
				if !m.unsure {
					act(rt)
				}
			}
		}
		rt.Repeat(actions)
		if !m.unsure {
			m.drain(rt)
		}
	}))
}

func (m *queueModel[TX]) order(rt *rapid.T) order {
	m.next++
	return order{rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(rt, "key"), m.next}
}

func (m *queueModel[TX]) orders(rt *rapid.T) (all []order) {
	for range rapid.IntRange(1, 4).Draw(rt, "messages") {
		all = append(all, m.order(rt))
	}
	return all
}

// dispatch sends in a transaction, without a relay.
func (m *queueModel[TX]) dispatch(rt *rapid.T) {
	sent := m.orders(rt)
	keep := rapid.IntRange(0, 3).Draw(rt, "keep") > 0
	err := m.out.InTx(context.Background(), func(ctx context.Context, tx outbox.Tx[TX]) error {
		for _, o := range sent {
			if _, err := tx.Dispatch(ctx, o); err != nil {
				return err
			}
		}
		if !keep {
			return errChangedMind
		}
		return nil
	})
	if !keep {
		if !errors.Is(err, errChangedMind) {
			rt.Fatalf("InTx = %v, want %v", err, errChangedMind)
		}
		return
	}
	must(rt, err)
	for _, o := range sent {
		m.join(o)
	}
}

func (m *queueModel[TX]) send(rt *rapid.T) {
	for _, o := range m.orders(rt) {
		must(rt, m.receivers[0].Send(context.Background(), arrival(m.t, o)))
		m.join(o)
	}
}

func (m *queueModel[TX]) sendDelayed(rt *rapid.T) {
	first := m.order(rt)
	for i := range rapid.IntRange(1, 3).Draw(rt, "messages") {
		o, start := order{first.Key, first.Seq + i}, time.Now()
		m.next = o.Seq
		rec := arrival(m.t, o)
		rec.Delay = time.Duration(rapid.IntRange(1, 30).Draw(rt, "delay")) * time.Millisecond
		must(rt, m.receivers[0].Send(context.Background(), rec))
		m.delay(o, start, rec.Delay)
	}
}

// by draws a receiver.
func (m *queueModel[TX]) by(rt *rapid.T) int {
	return rapid.IntRange(0, len(m.receivers)-1).Draw(rt, "receiver")
}

func (m *queueModel[TX]) receive(rt *rapid.T) {
	m.take(rt, m.by(rt), rapid.SampledFrom([]int{1, 2, 5, 20, 30, 100}).Draw(rt, "max"), 10*time.Millisecond)
}

// take receives messages, compares them with the model, and adds them to hand.
func (m *queueModel[TX]) take(rt *rapid.T, by, max int, within time.Duration) {
	q := m.receivers[by]
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	start := time.Now()
	ds, err := q.Receive(ctx, max)
	now := time.Now()
	switch {
	case err != nil && q.LeaseTime() == shortLease && now.Sub(start) >= shortLease:
		m.unsure = true // that is as long as a claim may take
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		rt.Fatal(err)
	}
	if len(ds) > max {
		rt.Fatalf("%d messages, want at most %d", len(ds), max)
	}
	found := ordersOf(ds)
	others := m.deliveries
	for i, d := range ds {
		m.deliveries = append(m.deliveries, &loan{Delivery: d, by: by, order: found[i], from: start.Add(q.LeaseTime() - time.Millisecond), to: now.Add(q.LeaseTime() + time.Millisecond)})
	}
	must(rt, m.see(found))
	for i, d := range ds {
		o := found[i]
		for _, other := range others {
			if other.order != o && (o.Key == "" || other.order.Key != o.Key) {
				continue
			}
			if !other.lost && now.Before(other.from) {
				rt.Fatalf("delivered %v: receiver %d has %v for another %v at least", found, other.by, other.order, other.from.Sub(now))
			}
			other.lost = other.lost || other.order == o
		}
		if early := m.resting[o].Sub(now); early > 0 {
			rt.Fatalf("delivered %v: %v came %v before it was due again", found, o, early)
		}
		if d.Failures != m.failures[o] || d.Record.Headers[waybill.HeaderHandledBy] != m.handled[o] {
			rt.Fatalf("%v has failed %d times and was handled by %q, want %d and %q", o, d.Failures, d.Record.Headers[waybill.HeaderHandledBy], m.failures[o], m.handled[o])
		}
	}
}

// stranger settles a delivery of another receiver, which changes nothing.
func (m *queueModel[TX]) stranger(rt *rapid.T) {
	if len(m.deliveries) == 0 {
		rt.SkipNow()
	}
	l := rapid.SampledFrom(m.deliveries).Draw(rt, "delivery")
	q := m.receivers[(l.by+1)%len(m.receivers)]
	for _, err := range []error{
		q.Ack(context.Background(), l.Delivery), q.Release(context.Background(), l.Delivery), q.Retry(context.Background(), l.Delivery, 0),
	} {
		if !errors.Is(err, waybill.ErrLeaseLost) {
			rt.Fatalf("what receiver %d has was settled by another one: %v, want ErrLeaseLost", l.by, err)
		}
	}
}

// oversleep waits for the end of the short leases, whose receiver may renew them
// in time; then a receiver claims.
func (m *queueModel[TX]) oversleep(rt *rapid.T) {
	mine := slices.DeleteFunc(m.of(2), func(l *loan) bool { return l.lost })
	if len(mine) == 0 {
		rt.SkipNow()
	}
	end := mine[len(mine)-1].to
	if rapid.Bool().Draw(rt, "renew") {
		time.Sleep(time.Until(end) - shortLease/2)
		m.renewOf(rt, 2)
	}
	time.Sleep(time.Until(end))
	m.take(rt, rapid.SampledFrom([]int{0, 2}).Draw(rt, "receiver"), 100, 10*time.Millisecond)
}

// die abandons the deliveries of the receiver with the short lease.
func (m *queueModel[TX]) die(rt *rapid.T) {
	mine := m.of(2)
	if len(mine) == 0 {
		rt.SkipNow()
	}
	for _, l := range mine {
		l.dead = true
	}
}

// drain acknowledges the deliveries in flight and all messages left.
func (m *queueModel[TX]) drain(rt *rapid.T) {
	for start := time.Now(); ; {
		for by, q := range m.receivers {
			for _, l := range m.of(by) {
				m.deliveries = slices.DeleteFunc(m.deliveries, func(other *loan) bool { return other == l })
				for range m.settled(rt, []*loan{l}, q.Ack(context.Background(), l.Delivery)) {
					m.leave(l.order)
				}
			}
		}
		if m.count() == 0 && len(m.delayed) == 0 {
			return
		}
		if time.Since(start) > patience {
			rt.Fatalf("these never came: %v, and delayed %v", m.waiting, m.delayed)
		}
		m.take(rt, 0, 100, patience)
	}
}
