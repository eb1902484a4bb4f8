package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
)

// A call of Receive is a transaction of a queue in a table: it is for half of the prefetch, or for
// less where a handler would be idle otherwise.
func TestRoomIsOfferedWhereACallIsWorthIt(t *testing.T) {
	for name, c := range map[string]struct{ inFlight, busy, acking, want int }{
		"nothing in flight":                       {0, 0, 0, 8},
		"half is free":                            {4, 2, 0, 4},
		"half is free, and more will be":          {4, 2, 2, 4},
		"less than half":                          {5, 2, 0, 0},
		"a handler is idle":                       {5, 1, 0, 3},
		"a handler is idle until room is made":    {5, 1, 1, 0},
		"all are idle, and all is acknowledged":   {8, 0, 8, 0},
		"all are idle, behind keys that go round": {7, 0, 0, 1},
		"no room": {8, 1, 0, 0},
	} {
		s := newSource(nil, nil, 8, 2)
		for range c.inFlight {
			s.queue.Add(&waybill.Delivery{Record: &waybill.Record{}})
		}
		s.busy, s.acking = c.busy, c.acking
		if room, n := s.offer(false); n != c.want || (room != nil) != (n > 0) {
			t.Errorf("%s: %d messages, want %d", name, n, c.want)
		}
	}
}

type leaseless struct{ waybill.Receiver }

func (leaseless) LeaseTime() time.Duration { return 0 }

// Keys that have failed once and do not come again are not remembered.
func TestKeysThatWaitedAreForgotten(t *testing.T) {
	r := &running{Worker: &Worker{}, main: newSource(leaseless{}, nil, 10, 1), waiting: map[string]int64{}}
	for n := range int64(1000) {
		r.waiting[fmt.Sprint(n)] = n
	}
	r.takeIn(batch{from: r.main, stored: 989})
	if n := len(r.waiting); n != 10 || r.waiting["990"] != 990 {
		t.Errorf("%d keys are left, want the 10 with moves that were not stored", n)
	}
}
