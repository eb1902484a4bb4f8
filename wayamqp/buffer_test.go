package wayamqp

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
)

// The law of acknowledging: after every call the broker holds exactly the tags that
// were not added, and it is never told of a tag it does not hold.
func TestAcksCoverExactlyWhatWasAdded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(t, "n")
		held, left := map[uint64]bool{}, map[uint64]bool{}
		var tags []uint64
		for tag := uint64(1); tag <= uint64(n); tag++ {
			held[tag], left[tag] = true, true
			tags = append(tags, tag)
		}
		tags = rapid.Permutation(tags).Draw(t, "order")
		var a acks
		for len(tags) > 0 {
			k := rapid.IntRange(1, len(tags)).Draw(t, "together")
			upto, single := a.add(tags[:k])
			for _, tag := range tags[:k] {
				delete(left, tag)
			}
			tags = tags[k:]
			if upto > 0 {
				if !held[upto] {
					t.Fatalf("all up to %d, which the broker does not hold", upto)
				}
				for tag := range held {
					if tag <= upto {
						delete(held, tag)
					}
				}
			}
			for _, tag := range single {
				if !held[tag] {
					t.Fatalf("%d, which the broker does not hold", tag)
				}
				delete(held, tag)
			}
			if fmt.Sprint(held) != fmt.Sprint(left) {
				t.Fatalf("the broker holds %v, want %v", held, left)
			}
			if len(a.done) > len(left)+1 {
				t.Fatalf("%d runs with %d in flight", len(a.done), len(left))
			}
		}
		if !slices.Equal(a.done, []tagRun{{0, uint64(n)}}) {
			t.Fatalf("in the end %v are done", a.done)
		}
	})
}

func TestOneAcknowledgementForAllInOnePiece(t *testing.T) {
	var a acks
	if upto, single := a.add([]uint64{3, 1, 2}); upto != 3 || len(single) != 0 {
		t.Errorf("of 1 to 3: up to %d and %v", upto, single)
	}
	if upto, single := a.add([]uint64{6, 5}); upto != 0 || !slices.Equal(single, []uint64{5, 6}) {
		t.Errorf("of 5 and 6: up to %d and %v", upto, single)
	}
	if upto, single := a.add([]uint64{4, 8}); upto != 4 || !slices.Equal(single, []uint64{8}) {
		t.Errorf("of 4 and 8: up to %d and %v", upto, single)
	}
}

// Invariants of the buffer: deliveries of a key in flight come from one call of
// take, in order and not before they are due, and in the end every message is
// delivered.
func TestShelfKeepsTheOrderOfKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		s, se := newDeliveryBuffer(), &session{}
		var inHand []*waybill.Delivery
		due := map[string]time.Time{}    // of message ids that wait for a retry
		handled := map[string][]uint64{} // per key
		added, tag := 0, uint64(0)
		ids := 0
		ended := 0
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				tag++
				added++
				ids++
				p := &delivery{session: se, tag: tag}
				p.d = &waybill.Delivery{Record: &waybill.Record{ID: waybill.MessageID{byte(ids >> 8), byte(ids), 1}, Key: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "key")}, Tag: p}
				s.add(p, now)
			},
			"take": func(t *rapid.T) {
				busy := map[string]bool{}
				for _, d := range inHand {
					busy[d.Record.Key] = true
				}
				ds, next := s.take(rapid.IntRange(1, 5).Draw(t, "max"), now)
				if !next.IsZero() && !next.After(now) {
					t.Fatalf("more is due at %v, it is %v", next, now)
				}
				for _, d := range ds {
					if d.Record.Key != "" && busy[d.Record.Key] {
						t.Fatalf("key %s is in flight", d.Record.Key)
					}
					if due[d.Record.ID.String()].After(now) {
						t.Fatalf("message %v came before its time", d.Record.ID)
					}
				}
				inHand = append(inHand, ds...)
			},
			"settle": func(t *rapid.T) {
				if len(inHand) == 0 {
					t.Skip("nothing in flight")
				}
				// As a worker does: the oldest of a key is settled first, and after a
				// failure the deliveries behind it go back.
				i := rapid.IntRange(0, len(inHand)-1).Draw(t, "which")
				key := inHand[i].Record.Key
				if key != "" {
					i = slices.IndexFunc(inHand, func(d *waybill.Delivery) bool { return d.Record.Key == key })
				}
				d := inHand[i]
				p := d.Tag.(*delivery)
				inHand = slices.Delete(inHand, i, i+1)
				if rapid.Bool().Draw(t, "handled") {
					if key != "" {
						if last := handled[key]; len(last) > 0 && last[len(last)-1] >= p.tag {
							t.Fatalf("key %s: %d after %v", key, p.tag, last)
						}
						handled[key] = append(handled[key], p.tag)
					}
					ended++
					s.end(p, now)
					return
				}
				at := now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "delay")) * time.Second)
				due[d.Record.ID.String()] = at
				s.back(p, d.Failures+1, at, now)
				if key == "" {
					return
				}
				var keep []*waybill.Delivery
				for _, d := range inHand {
					if d.Record.Key == key {
						s.back(d.Tag.(*delivery), d.Failures, time.Time{}, now)
					} else {
						keep = append(keep, d)
					}
				}
				inHand = keep
			},
			"time": func(*rapid.T) { now = now.Add(time.Second) },
		})
		// Everything comes in the end, and nothing is left.
		for _, d := range inHand {
			s.end(d.Tag.(*delivery), now)
			ended++
		}
		for range 3 * added {
			now = now.Add(4 * time.Second)
			ds, _ := s.take(3, now)
			for _, d := range ds {
				s.end(d.Tag.(*delivery), now)
				ended++
			}
		}
		if ended != added || len(s.queues) != 0 {
			t.Fatalf("%d of %d came, %d keys are left", ended, added, len(s.queues))
		}
	})
}

// A message that waited for its retry when the connection was lost still waits,
// also behind another of its key.
func TestShelfRemembersWhenALostMessageIsDue(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s, se := newDeliveryBuffer(), &session{}
	arrive := func(id byte) *delivery {
		p := &delivery{session: se, tag: uint64(id)}
		p.d = &waybill.Delivery{Record: &waybill.Record{ID: waybill.MessageID{id}, Key: "a"}, Tag: p}
		s.add(p, now)
		return p
	}
	arrive(2)
	ds, _ := s.take(1, now)
	s.back(ds[0].Tag.(*delivery), 1, now.Add(time.Minute), now)
	s.clear(now)
	arrive(1)
	arrive(2)
	if ds, _ := s.take(5, now); len(ds) != 1 || ds[0].Record.ID[0] != 1 {
		t.Errorf("%d came at once, want the first alone", len(ds))
	} else {
		s.end(ds[0].Tag.(*delivery), now)
	}
	if ds, next := s.take(5, now); len(ds) != 0 || !next.Equal(now.Add(time.Minute)) {
		t.Errorf("%d came, the next is due at %v", len(ds), next)
	}
	if ds, _ := s.take(5, now.Add(time.Minute)); len(ds) != 1 || ds[0].Failures != 1 {
		t.Errorf("%d came at their time", len(ds))
	}
	s.clear(now.Add(2 * time.Hour))
	if len(s.memory) != 0 {
		t.Errorf("%d are remembered for ever", len(s.memory))
	}
}

// What is known of a failed message survives the loss of its connection, whether its
// copy arrives before the failure or after it, and for an hour.
func TestShelfKeepsTheStateOfALostMessage(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	due := now.Add(time.Minute)
	for _, copyFirst := range []bool{true, false} {
		s := newDeliveryBuffer()
		arrive := func(tag uint64) *delivery {
			p := &delivery{session: &session{}, tag: tag}
			p.d = &waybill.Delivery{Record: &waybill.Record{ID: waybill.MessageID{1}, Key: "a"}, Tag: p}
			s.add(p, now)
			return p
		}
		first := arrive(1)
		s.take(1, now)
		s.clear(now)
		first.d.Record.MarkHandled("billing")
		if copyFirst {
			arrive(2)
			s.lose(first, 1, due, now)
		} else {
			s.lose(first, 1, due, now)
			arrive(2)
		}
		if ds, next := s.take(5, now); len(ds) != 0 || !next.Equal(due) {
			t.Errorf("copy first %t: %d came at once, the next is due at %v, want %v", copyFirst, len(ds), next, due)
		}
		ds, _ := s.take(5, due)
		if len(ds) != 1 || ds[0].Failures != 1 || ds[0].Record.Headers[waybill.HeaderHandledBy] != "billing" {
			t.Errorf("copy first %t: %+v came at its time, want one with a failure, handled by billing", copyFirst, ds)
		}
	}
	s := newDeliveryBuffer()
	s.remember(&waybill.Record{ID: waybill.MessageID{1}}, 1, due, now)
	s.clear(now.Add(memoryFor))
	if len(s.memory) != 1 {
		t.Error("it was forgotten too early")
	}
	s.clear(now.Add(memoryFor + 1))
	if len(s.memory) != 0 {
		t.Error("it is remembered for ever")
	}
}

// After the first relief has ended, further failing keys get one as well.
func TestReliefIsGivenAgain(t *testing.T) {
	now := time.Now()
	c := &Consumer{cfg: Config{Prefetch: 4}, buffer: newDeliveryBuffer(), session: &session{more: make(chan struct{}, 1)}}
	relieved := func() bool {
		c.relieve()
		select {
		case <-c.session.more:
			return true
		default:
			return false
		}
	}
	fail := func(tags ...uint64) {
		for _, tag := range tags {
			p := &delivery{session: c.session, tag: tag}
			p.d = &waybill.Delivery{Record: &waybill.Record{Key: fmt.Sprint(tag)}, Tag: p}
			c.buffer.add(p, now)
			c.buffer.take(1, now)
			c.buffer.back(p, 1, now.Add(time.Minute), now)
		}
	}
	fail(1, 2)
	if relieved() {
		t.Error("relief for half of the prefetch")
	}
	fail(3)
	if !relieved() || relieved() {
		t.Error("more than half of the prefetch waits: want one relief")
	}
	ds, _ := c.buffer.take(3, now.Add(time.Minute))
	for _, d := range ds {
		c.buffer.end(d.Tag.(*delivery), now)
	}
	if relieved() {
		t.Error("relief although nothing waits")
	}
	fail(4, 5, 6)
	if !relieved() {
		t.Error("no second relief")
	}
}
