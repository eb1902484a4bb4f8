package waytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
)

// lockedQueue returns a receiver that gives up on locks soon, and locks the queues, or skips
// the case.
func (s *fixture[TX]) lockedQueue(name string) (q Transport, unlock func()) {
	s.t.Helper()
	s.queue(name, 0) // the first use of a table is not the case
	if s.LockedQueue == nil {
		s.t.Skip("the place cannot lock its queues")
	}
	q, unlock = s.LockedQueue(s.t, name)
	unlock = sync.OnceFunc(unlock)
	s.t.Cleanup(unlock)
	return q, unlock
}

// A worker calls again after ErrUnavailable, and ends for any other error.
func lockedTableIsUnavailable[TX any](t *testing.T, s *fixture[TX]) {
	s.local(order{"x", 0})
	q, unlock := s.lockedQueue("q")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if ds, err := q.Receive(ctx, 1); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Receive of a locked table = %d messages, %v, want ErrUnavailable", len(ds), err)
	}
	unlock()
	ds := receive(t, q, 1)
	wantOrders(t, "after the lock", ds, order{"x", 0})
	try(t, "Ack", q.Ack(t.Context(), ds...))
}

// A claim that waits for a lock ends a few seconds after its caller's context, not with
// the lease that it would have given.
func claimEndsSoonAfterItsCaller[TX any](t *testing.T, s *fixture[TX]) {
	s.local(order{"x", 0})
	q := s.queue("q", 5*time.Minute)
	s.lockedQueue("q")
	ctx, cancel := context.WithTimeout(t.Context(), moment)
	defer cancel()
	start := time.Now()
	// An idle worker ends, but not one that has seen nothing of its queue.
	if ds, err := q.Receive(ctx, 1); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Receive of a locked table = %d messages, %v, want ErrUnavailable", len(ds), err)
	}
	if took := time.Since(start); took > 9*time.Second { // the least time after which a database gives up itself
		t.Errorf("Receive returned %v after its context had ended", took-moment)
	}
}

// Renewing, acknowledging and releasing at once, in any order of the rows, deadlocks with
// nothing.
func renewAndAckAtOnce[TX any](t *testing.T, s *fixture[TX]) {
	q, other := s.queue("q", 0), s.queue("q", 0)
	for range 5 {
		var sent []order
		for i := range 150 {
			sent = append(sent, order{fmt.Sprint("k", i), i})
		}
		s.local(sent...)
		var ds []*waybill.Delivery
		for len(ds) < len(sent) {
			ds = append(ds, receive(t, q, 200)...)
		}
		var done sync.WaitGroup
		for range 3 {
			done.Go(func() {
				for range 5 {
					if _, err := q.Renew(context.Background(), shuffled(ds)...); err != nil {
						t.Errorf("Renew = %v", err)
					}
				}
			})
		}
		for some := range slices.Chunk(shuffled(ds), 50) {
			done.Go(func() {
				if err := q.Release(context.Background(), some[0]); err != nil {
					t.Errorf("Release = %v", err)
				}
				if err := q.Ack(context.Background(), some...); !errors.Is(err, waybill.ErrLeaseLost) {
					t.Errorf("Ack = %v, want ErrLeaseLost: one was released", err)
				}
			})
		}
		for left := 3; left > 0; {
			again := receive(t, other, 1)
			try(t, "Ack of a released message", other.Ack(t.Context(), again...))
			left -= len(again)
		}
		done.Wait()
	}
}

func shuffled(ds []*waybill.Delivery) []*waybill.Delivery {
	ds = slices.Clone(ds)
	rand.Shuffle(len(ds), func(i, j int) { ds[i], ds[j] = ds[j], ds[i] })
	return ds
}

// All that a dead receiver had comes again when its lease ends, and what waited behind it,
// in order per key.
func messagesOfADeadReceiverComeAgainInOrder[TX any](t *testing.T, s *fixture[TX]) {
	const lease = time.Second
	dead, q := s.queue("q", lease), s.queue("q", 0)
	var sent []order
	for i := range 60 {
		sent = append(sent, order{fmt.Sprint("k", i%10), i / 10})
	}
	s.local(sent...)
	died := time.Now()
	had := len(receive(t, dead, 30))
	if had < 20 {
		t.Fatalf("the receiver had %d messages, want 20 at least", had)
	}
	var got []order
	for first := true; len(got) < len(sent); first = false {
		ds := receive(t, q, 100)
		if first && time.Since(died) < lease {
			t.Fatalf("%d messages came after %v", len(ds), time.Since(died))
		}
		if len(got) < had && len(got)+len(ds) >= had && time.Since(died) > lease+5*time.Second {
			t.Errorf("the dead receiver's came after %v, want %v", time.Since(died), lease)
		}
		got = append(got, ordersOf(ds)...)
		try(t, "Ack", q.Ack(t.Context(), ds...))
	}
	perKey(t, got)
	if len(got) != len(sent) {
		t.Errorf("%d messages, want %d", len(got), len(sent))
	}
}

// A claim leases a bounded part of one key, and other keys are not behind it.
func hotKeyLeavesRoomForOthers[TX any](t *testing.T, s *fixture[TX]) {
	q := s.queue("q", 0)
	if s.LockedQueue == nil {
		t.Skip("the place has no table of queues")
	}
	var sent []order
	for i := range 300 {
		sent = append(sent, order{"hot", i})
	}
	s.local(append(sent, order{"x", 0})...)
	got := map[string]int{}
	for range 3 {
		ds := receive(t, q, 40)
		for _, d := range ds {
			if got[d.Record.Key]++; got["hot"] > 4 {
				t.Fatalf("%d messages of one key in flight, want a tenth of 40", got["hot"])
			}
		}
		if got["x"] == 1 {
			return
		}
	}
	t.Errorf("delivered %v, want the other key as well", got)
}
