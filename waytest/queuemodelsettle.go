package waytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
)

// someDelivered draws some deliveries of a receiver, lost ones included, and removes
// them from the model: they are about to be settled.
func (m *queueModel[TX]) someDelivered(rt *rapid.T, max int) (q Transport, some []*loan, ds []*waybill.Delivery) {
	mine := m.of(m.by(rt))
	if len(mine) == 0 {
		rt.SkipNow()
	}
	for range min(max, rapid.IntRange(1, len(mine)).Draw(rt, "some")) {
		i := rapid.IntRange(0, len(mine)-1).Draw(rt, "which")
		some, ds = append(some, mine[i]), append(ds, mine[i].Delivery)
		mine = slices.Delete(mine, i, i+1)
	}
	m.deliveries = slices.DeleteFunc(m.deliveries, func(l *loan) bool { return slices.Contains(some, l) })
	return m.receivers[some[0].by], some, ds
}

// of returns the deliveries of a receiver, without those of a dead one.
func (m *queueModel[TX]) of(by int) []*loan {
	return slices.DeleteFunc(slices.Clone(m.deliveries), func(l *loan) bool { return l.by != by || l.dead })
}

// settled compares the outcome of settling some with the model, and returns the
// deliveries that had not lost their lease.
func (m *queueModel[TX]) settled(rt *rapid.T, some []*loan, err error) (ended []*loan) {
	rt.Helper()
	for _, l := range some {
		if !l.lost {
			ended = append(ended, l)
		}
	}
	switch isLost := errors.Is(err, waybill.ErrLeaseLost); {
	case err != nil && !isLost, isLost != (len(ended) < len(some)):
		rt.Fatalf("settling %s: %v, and %d of these are lost", describe(some), err, len(some)-len(ended))
	}
	if rapid.Bool().Draw(rt, "again") { // the receiver forgets that it has settled them
		for _, l := range ended {
			m.deliveries = append(m.deliveries, &loan{Delivery: l.Delivery, by: l.by, order: l.order, lost: true})
		}
	}
	return ended
}

func describe(some []*loan) (s string) {
	for _, l := range some {
		s += fmt.Sprintf("%v (lost %v) ", l.order, l.lost)
	}
	return s
}

func (m *queueModel[TX]) ack(rt *rapid.T) {
	q, some, ds := m.someDelivered(rt, 10)
	for _, l := range m.settled(rt, some, q.Ack(context.Background(), ds...)) {
		m.leave(l.order)
	}
}

func (m *queueModel[TX]) release(rt *rapid.T) {
	q, some, ds := m.someDelivered(rt, 10)
	m.settled(rt, some, q.Release(context.Background(), ds...))
}

func (m *queueModel[TX]) retry(rt *rapid.T) {
	q, some, ds := m.someDelivered(rt, 1)
	ds[0].Record.MarkHandled(fmt.Sprint("handler", rapid.IntRange(0, 9).Draw(rt, "handler")))
	delay := time.Duration(rapid.IntRange(0, 20).Draw(rt, "delay")) * time.Millisecond
	start := time.Now()
	for _, l := range m.settled(rt, some, q.Retry(context.Background(), ds[0], delay)) {
		m.failures[l.order]++
		m.handled[l.order] = l.Record.Headers[waybill.HeaderHandledBy]
		m.resting[l.order] = start.Add(delay - time.Millisecond)
	}
}

// renew also renews leases past their end: they are kept if no other claim took
// the message.
func (m *queueModel[TX]) renew(rt *rapid.T) { m.renewOf(rt, m.by(rt)) }

func (m *queueModel[TX]) renewOf(rt *rapid.T, by int) {
	mine := m.of(by)
	var ds, want []*waybill.Delivery
	for _, l := range mine {
		if ds = append(ds, l.Delivery); l.lost {
			want = append(want, l.Delivery)
		}
	}
	q, start := m.receivers[by], time.Now()
	lost, err := q.Renew(context.Background(), ds...)
	must(rt, err)
	if !slices.Equal(lost, want) {
		rt.Fatalf("Renew of %s: %v are lost", describe(mine), ordersOf(lost))
	}
	for _, l := range mine {
		if !l.lost {
			l.from, l.to = start.Add(q.LeaseTime()-time.Millisecond), time.Now().Add(q.LeaseTime()+time.Millisecond)
		}
	}
}
