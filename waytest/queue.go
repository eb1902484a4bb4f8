package waytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// Queue is the suite of the queues in a database.
func Queue[TX any](t *testing.T, open func(t *testing.T) Harness[TX]) {
	runCases(t, open, []testCase[TX]{
		{"KeyIsDeliveredToOneReceiverInOrder", keyIsLentToOneReceiverInOrder[TX]},
		{"AnyScheduleOfReceiversKeepsTheOrder", anyScheduleOfReceiversKeepsTheOrder[TX]},
		{"RetryHoldsTheKeyBack", retryHoldsTheKeyBack[TX]},
		{"ReleasedMessagesComeAgainAtOnceInOrder", releasedMessagesComeAgainAtOnceInOrder[TX]},
		{"AckIsExact", ackIsExact[TX]},
		{"HolderWhoseLeaseEndedIsFenced", holderWhoseLeaseEndedIsFenced[TX]},
		{"OldDeliveryOfTheSameHolderIsFenced", oldDeliveryOfTheSameHolderIsFenced[TX]},
		{"RenewedLeaseIsKept", renewedLeaseIsKept[TX]},
		{"ReceiversThatClaimAtOnceShareNoKey", receiversThatClaimAtOnceShareNoKey[TX]},
		{"ReceiveEndsWithItsContext", receiveEndsWithItsContext[TX]},
		{"DelayedMessageIsKeptBack", delayedMessageIsKeptBack[TX]},
		{"DelayedMessagesAreOrderedFromTheirDueTime", delayedMessagesAreOrderedFromTheirDueTime[TX]},
		{"BatchIsStoredInOrder", batchIsStoredInOrder[TX]},
		{"RecordsPassTheQueueUnchanged", recordsPassTheQueueUnchanged[TX]},
		{"KeysOfAQueueDifferBytewise", keysOfAQueueDifferBytewise[TX]},
		{"LockedTableIsUnavailable", lockedTableIsUnavailable[TX]},
		{"ClaimEndsSoonAfterItsCaller", claimEndsSoonAfterItsCaller[TX]},
		{"RenewAndAckAtOnce", renewAndAckAtOnce[TX]},
		{"MessagesOfADeadReceiverComeAgainInOrder", messagesOfADeadReceiverComeAgainInOrder[TX]},
		{"KeyOfWhichAClaimReadsAPartKeepsItsOrder", keyOfWhichAClaimReadsAPartKeepsItsOrder[TX]},
		{"DueMessageComesBesideThoseOfAKey", dueMessageComesBesideThoseOfAKey[TX]},
		{"HotKeyLeavesRoomForOthers", hotKeyLeavesRoomForOthers[TX]},
	})
}

// queue returns a new receiver, or skips the case.
func (s *fixture[TX]) queue(name string, lease time.Duration) Transport {
	s.t.Helper()
	if s.Queue == nil {
		s.t.Skip("the place has no queues")
	}
	q, err := s.Queue(name, lease)
	if err != nil {
		s.t.Fatal(err)
	}
	if lease != 0 && q.LeaseTime() != lease {
		s.t.Skip("the queue's lease cannot be chosen")
	}
	return q
}

// local sends orders to the queue "q" in one transaction, without a relay.
func (s *fixture[TX]) local(orders ...order) {
	s.t.Helper()
	var msgs []any
	for _, o := range orders {
		msgs = append(msgs, o)
	}
	s.put(s.outbox(toQueue), msgs...)
}

var toQueue = outbox.Config{To: "q", Queues: map[string]string{"q": "q"}}

// receive waits for messages.
func receive(t testing.TB, q waybill.Receiver, max int) []*waybill.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ds, err := q.Receive(ctx, max)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

// glance takes messages that are there, or none.
func glance(t testing.TB, q waybill.Receiver, max int) []*waybill.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), moment)
	defer cancel()
	ds, err := q.Receive(ctx, max)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	return ds
}

func ordersOf(ds []*waybill.Delivery) []order {
	got := []order{}
	for _, d := range ds {
		got = append(got, bodyOf(d.Record))
	}
	return got
}

func wantOrders(t testing.TB, what string, ds []*waybill.Delivery, want ...order) {
	t.Helper()
	if diff := cmp.Diff(append([]order{}, want...), ordersOf(ds)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// try reports an unexpected error.
func try(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s = %v", what, err)
	}
}

func keyIsLentToOneReceiverInOrder[TX any](t *testing.T, s *fixture[TX]) {
	a, b := s.queue("q", 0), s.queue("q", 0)
	s.local(order{"x", 0}, order{"y", 0}, order{"x", 1}, order{"", 0}, order{"", 1})
	first := receive(t, a, 1)
	wantOrders(t, "a", first, order{"x", 0})
	wantOrders(t, "b, while a has x", receive(t, b, 40), order{"y", 0}, order{"", 0}, order{"", 1})
	wantOrders(t, "a, while it has x itself", glance(t, a, 40))
	try(t, "Ack", a.Ack(t.Context(), first...))
	s.local(order{"x", 2})
	wantOrders(t, "b, when x is free", receive(t, b, 40), order{"x", 1}, order{"x", 2})
}

func retryHoldsTheKeyBack[TX any](t *testing.T, s *fixture[TX]) {
	a, b := s.queue("q", 0), s.queue("q", 0)
	s.local(order{"x", 0}, order{"x", 1}, order{"", 0}, order{"", 1})
	ds := receive(t, a, 40)
	wantOrders(t, "a", ds, order{"x", 0}, order{"x", 1}, order{"", 0}, order{"", 1})
	failedAt := time.Now()
	const delay = time.Second
	ds[0].Record.MarkHandled("mail")
	try(t, "Retry", a.Retry(t.Context(), ds[0], delay))
	try(t, "Release", a.Release(t.Context(), ds[1]))
	try(t, "Retry of one without a key", a.Retry(t.Context(), ds[2], delay))
	try(t, "Ack", a.Ack(t.Context(), ds[3]))
	var again []*waybill.Delivery
	for _, q := range []Transport{a, b} {
		got := glance(t, q, 40)
		if len(got) > 0 && time.Since(failedAt) < delay {
			t.Errorf("%v came while the head waits", ordersOf(got))
		}
		again = append(again, got...) // on a machine that is slow
	}
	for len(again) < 3 {
		again = append(again, receive(t, b, 40)...)
	}
	if early := time.Until(failedAt.Add(delay)); early > 0 {
		t.Errorf("they came %v too early", early)
	}
	again = slices.DeleteFunc(again, func(d *waybill.Delivery) bool { return d.Record.Key == "" && d.Failures == 1 })
	wantOrders(t, "when it is due", again, order{"x", 0}, order{"x", 1})
	if again[0].Failures != 1 || again[1].Failures != 0 {
		t.Errorf("failures %d and %d, want 1 and 0: a release counts none", again[0].Failures, again[1].Failures)
	}
	if got := again[0].Record.Headers[waybill.HeaderHandledBy]; got != "mail" {
		t.Errorf("handled by %q, want mail", got)
	}
}

func releasedMessagesComeAgainAtOnceInOrder[TX any](t *testing.T, s *fixture[TX]) {
	a, b := s.queue("q", 0), s.queue("q", 0)
	s.local(order{"x", 0}, order{"x", 1}, order{"x", 2}, order{"y", 0})
	ds := receive(t, a, 40)
	wantOrders(t, "a", ds, order{"x", 0}, order{"x", 1}, order{"x", 2}, order{"y", 0})
	try(t, "Ack", a.Ack(t.Context(), ds[0]))
	try(t, "Release, in whatever order", a.Release(t.Context(), ds[3], ds[2], ds[1]))
	again := receive(t, b, 40)
	wantOrders(t, "b", again, order{"x", 1}, order{"x", 2}, order{"y", 0})
	for _, d := range again {
		if d.Failures != 0 {
			t.Errorf("a release counted as a failure")
		}
	}
}

func ackIsExact[TX any](t *testing.T, s *fixture[TX]) {
	a, b := s.queue("q", 0), s.queue("q", 0)
	s.local(order{"x", 0}, order{"x", 1}, order{"y", 0}, order{"", 0}, order{"", 1}, order{"z", 0})
	ds := receive(t, a, 40)
	wantOrders(t, "a", ds, order{"x", 0}, order{"x", 1}, order{"y", 0}, order{"", 0}, order{"", 1}, order{"z", 0})
	try(t, "Ack of nothing", a.Ack(t.Context()))
	try(t, "Ack", a.Ack(t.Context(), ds[0], ds[3]))
	for name, settle := range map[string]func() error{
		"a second Ack":            func() error { return a.Ack(t.Context(), ds[0]) },
		"Retry after Ack":         func() error { return a.Retry(t.Context(), ds[0], 0) },
		"Release after Ack":       func() error { return a.Release(t.Context(), ds[0]) },
		"Ack by another receiver": func() error { return b.Ack(t.Context(), ds[1]) },
	} {
		if err := settle(); !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("%s = %v, want ErrLeaseLost", name, err)
		}
	}
	if err := a.Ack(t.Context(), ds[0], ds[2]); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("Ack of one that is lost and one that is not = %v, want ErrLeaseLost", err)
	}
	if err := a.Ack(t.Context(), &waybill.Delivery{Record: ds[1].Record, Tag: "another transport's"}); err == nil {
		t.Error("Ack of another transport's delivery = nil")
	}
	try(t, "Release", a.Release(t.Context(), ds[1], ds[4], ds[5]))
	var left []*waybill.Delivery
	for len(left) < 3 {
		left = append(left, receive(t, b, 40)...)
	}
	wantOrders(t, "what was not acknowledged", left, order{"x", 1}, order{"", 1}, order{"z", 0})
	wantOrders(t, "beside that", glance(t, a, 40))
}

// Concurrent claims: a key is with one receiver, and no message is delivered twice.
func receiversThatClaimAtOnceShareNoKey[TX any](t *testing.T, s *fixture[TX]) {
	const keys, each, receivers = 8, 30, 6
	var msgs []order
	for i := range keys * each {
		msgs = append(msgs, order{fmt.Sprint("k", i%keys), i / keys})
	}
	s.local(msgs...)
	var mu sync.Mutex
	holder, got := map[string]int{}, []order{}
	done := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) >= keys*each
	}
	var all sync.WaitGroup
	for i := 1; i <= receivers; i++ {
		q := s.queue("q", 0)
		all.Go(func() {
			for start := time.Now(); !done() && time.Since(start) < patience; {
				ctx, cancel := context.WithTimeout(context.Background(), moment)
				ds, err := q.Receive(ctx, i)
				cancel()
				if errors.Is(err, context.DeadlineExceeded) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, d := range ds {
					o := bodyOf(d.Record)
					if other := holder[o.Key]; other != 0 && other != i {
						t.Errorf("key %s is with receivers %d and %d", o.Key, other, i)
					}
					holder[o.Key] = i
					got = append(got, o)
				}
				mu.Unlock()
				time.Sleep(time.Millisecond)
				mu.Lock()
				for _, d := range ds {
					holder[bodyOf(d.Record).Key] = 0
				}
				mu.Unlock()
				if err := q.Ack(context.Background(), ds...); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if perKey(t, got); len(got) != keys*each {
		t.Errorf("%d messages were delivered, want %d", len(got), keys*each)
	}
}

func receiveEndsWithItsContext[TX any](t *testing.T, s *fixture[TX]) {
	q := s.queue("q", 0)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s.local(order{"x", 0}, order{"y", 0})
	if ds, err := q.Receive(ended, 1); err == nil && len(ds) != 1 {
		t.Errorf("Receive with a context that has ended = %v, nil", ds)
	} else if err == nil {
		try(t, "Release", q.Release(t.Context(), ds...))
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("Receive with a context that has ended = %v, want context.Canceled", err)
	}
	wantOrders(t, "one", receive(t, q, 1), order{"x", 0})
	wantOrders(t, "the other", receive(t, q, 1), order{"y", 0})
	ctx, cancel := context.WithTimeout(t.Context(), moment)
	defer cancel()
	start := time.Now()
	if ds, err := q.Receive(ctx, 1); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > patience/2 {
		t.Errorf("Receive of an empty queue = %v, %v after %v, want DeadlineExceeded", ds, err, time.Since(start))
	}
}
