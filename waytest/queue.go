package waytest

import (
	"bytes"
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
func receive(t testing.TB, q Transport, max int) []*waybill.Delivery {
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
func glance(t testing.TB, q Transport, max int) []*waybill.Delivery {
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
	wantOrders(t, "b, while a has x", receive(t, b, 10), order{"y", 0}, order{"", 0}, order{"", 1})
	wantOrders(t, "a, while it has x itself", glance(t, a, 10))
	try(t, "Ack", a.Ack(t.Context(), first...))
	s.local(order{"x", 2})
	wantOrders(t, "b, when x is free", receive(t, b, 10), order{"x", 1}, order{"x", 2})
}

func retryHoldsTheKeyBack[TX any](t *testing.T, s *fixture[TX]) {
	a, b := s.queue("q", 0), s.queue("q", 0)
	s.local(order{"x", 0}, order{"x", 1}, order{"", 0}, order{"", 1})
	ds := receive(t, a, 10)
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
		got := glance(t, q, 10)
		if len(got) > 0 && time.Since(failedAt) < delay {
			t.Errorf("%v came while the head waits", ordersOf(got))
		}
		again = append(again, got...) // on a machine that is slow
	}
	for len(again) < 3 {
		again = append(again, receive(t, b, 10)...)
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
	ds := receive(t, a, 10)
	wantOrders(t, "a", ds, order{"x", 0}, order{"x", 1}, order{"x", 2}, order{"y", 0})
	try(t, "Ack", a.Ack(t.Context(), ds[0]))
	try(t, "Release, in whatever order", a.Release(t.Context(), ds[3], ds[2], ds[1]))
	again := receive(t, b, 10)
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
	ds := receive(t, a, 10)
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
		left = append(left, receive(t, b, 10)...)
	}
	wantOrders(t, "what was not acknowledged", left, order{"x", 1}, order{"", 1}, order{"z", 0})
	wantOrders(t, "beside that", glance(t, a, 10))
}

func holderWhoseLeaseEndedIsFenced[TX any](t *testing.T, s *fixture[TX]) {
	a, b := s.queue("q", 400*time.Millisecond), s.queue("q", 0)
	s.local(order{"x", 0}, order{"x", 1})
	delivered := receive(t, a, 1)
	taken := receive(t, b, 1)
	wantOrders(t, "b after a's lease", taken, order{"x", 0})
	if taken[0].Failures != 0 {
		t.Error("a lease that ended counted as a failure")
	}
	lost, err := a.Renew(t.Context(), delivered...)
	if err != nil || len(lost) != 1 {
		t.Errorf("Renew = %v, %v, want the one as lost", lost, err)
	}
	for name, settle := range map[string]func() error{
		"Ack":                     func() error { return a.Ack(t.Context(), delivered...) },
		"Retry":                   func() error { return a.Retry(t.Context(), delivered[0], 0) },
		"Release":                 func() error { return a.Release(t.Context(), delivered...) },
		"Ack by another receiver": func() error { return a.Ack(t.Context(), taken...) },
	} {
		if err := settle(); !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("%s of a late holder = %v, want ErrLeaseLost", name, err)
		}
	}
	if lost, err := b.Renew(t.Context(), taken...); err != nil || len(lost) != 0 {
		t.Errorf("Renew of the new holder = %v, %v", lost, err)
	}
	try(t, "Ack of the new holder", b.Ack(t.Context(), taken...))
	wantOrders(t, "what is left", receive(t, b, 10), order{"x", 1})
}

// The same receiver may have let a lease end and claimed the row again: its first
// delivery must not settle the second, even if one call settles both.
func oldDeliveryOfTheSameHolderIsFenced[TX any](t *testing.T, s *fixture[TX]) {
	q := s.queue("q", time.Second)
	s.local(order{"x", 0})
	old := receive(t, q, 1)[0]
	current := receive(t, q, 1)[0]
	if err := q.Ack(t.Context(), old); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("Ack of the old delivery = %v, want ErrLeaseLost", err)
	}
	for _, both := range [][]*waybill.Delivery{{old, current}, {current, old}} {
		if lost, err := q.Renew(t.Context(), both...); err != nil || !slices.Equal(lost, []*waybill.Delivery{old}) {
			t.Errorf("Renew of both deliveries = %d lost, %v, want the old one", len(lost), err)
		}
	}
	if err := q.Ack(t.Context(), current, old); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("Ack of both deliveries = %v, want ErrLeaseLost", err)
	}
	if err := q.Ack(t.Context(), current); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("Ack after that = %v, want ErrLeaseLost: the message was ended with the other", err)
	}
}

func renewedLeaseIsKept[TX any](t *testing.T, s *fixture[TX]) {
	const lease = time.Second
	a, b := s.queue("q", lease), s.queue("q", 0)
	s.local(order{"x", 0})
	ds := receive(t, a, 1)
	for start, last := time.Now(), time.Now(); time.Since(start) < 2*lease; last = time.Now() {
		if got := glance(t, b, 1); len(got) > 0 && time.Since(last) < lease/2 {
			t.Fatalf("%v was taken from a holder who renews", ordersOf(got))
		}
		if lost, err := a.Renew(t.Context(), ds...); err != nil || len(lost) > 0 && time.Since(last) < lease/2 {
			t.Fatalf("Renew = %v, %v", lost, err)
		}
	}
	try(t, "Ack", a.Ack(t.Context(), ds...))
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

func queueOfTheSameDatabaseNeedsNoRelay[TX any](t *testing.T, s *fixture[TX]) {
	q := s.queue("q", 0)
	out := s.outbox(toQueue)
	const delay = 500 * time.Millisecond
	dispatch := func(ctx context.Context, tx TX) error {
		for i, wait := range []time.Duration{delay, 0, 0} {
			if _, err := out.Dispatch(ctx, tx, order{"x", i}, waybill.Delay(wait)); err != nil {
				return err
			}
		}
		return nil
	}
	for what, inTx := range map[string]func(func(ctx context.Context, tx TX) error) error{
		"a unit of work":       func(fn func(ctx context.Context, tx TX) error) error { return s.Store.InTx(t.Context(), fn) },
		"the caller's own one": s.inOwnTx,
	} {
		start := time.Now()
		if err := inTx(dispatch); err != nil {
			t.Fatal(err)
		}
		ds := receive(t, q, 10)
		wantOrders(t, what+": at once", ds, order{"x", 1}, order{"x", 2})
		try(t, "Ack", q.Ack(t.Context(), ds...))
		ds = receive(t, q, 10)
		wantOrders(t, what+": when due", ds, order{"x", 0})
		if took := time.Since(start); took < delay {
			t.Errorf("%s: the delayed one came after %v, want %v", what, took, delay)
		}
		try(t, "Ack", q.Ack(t.Context(), ds...))
	}
	s.wantBacklog("of the outbox", outbox.Backlog{})
}

// A key's messages in a queue are in commit order too.
func dispatchersToAQueueTakeTurns[TX any](t *testing.T, s *fixture[TX]) {
	q := s.queue("q", 0)
	out := s.outbox(toQueue)
	for _, key := range []string{keyOfBucket(0), keyOfBucket(1), keyOfBucket(buckets - 1)} {
		first := s.begin()
		if _, err := out.Dispatch(t.Context(), first, order{key, 0}); err != nil {
			t.Fatal(err)
		}
		second := make(chan error, 1)
		go func() { second <- send(context.Background(), out, order{key, 1}) }()
		select {
		case err := <-second:
			second <- err
			if got := glance(t, q, 10); len(got) > 0 {
				t.Errorf("%v was delivered while a transaction that had dispatched to the key before was open", ordersOf(got))
			}
		case <-time.After(moment):
		}
		s.end(first, true)
		try(t, "the second dispatcher", <-second)
		var ds []*waybill.Delivery
		for len(ds) < 2 && !t.Failed() {
			one := receive(t, q, 1)
			try(t, "Ack", q.Ack(t.Context(), one...))
			ds = append(ds, one...)
		}
		wantOrders(t, "key "+key, ds, order{key, 0}, order{key, 1})
	}
}

func delayedMessageIsKeptBack[TX any](t *testing.T, s *fixture[TX]) {
	q := s.queue("q", 0)
	rec := arrival(t, order{"x", 0})
	rec.Delay = 300 * time.Millisecond
	try(t, "Send", q.Send(t.Context(), rec))
	if receive(t, q, 1); time.Since(rec.DispatchedAt) < rec.Delay {
		t.Errorf("received after %v, want 300 ms", time.Since(rec.DispatchedAt))
	}
}

// All are due in one claim. A delayed message is ordered, and aged, from its due
// time.
func delayedMessagesAreOrderedFromTheirDueTime[TX any](t *testing.T, s *fixture[TX]) {
	q := s.queue("q", 0)
	for _, seq := range []int{3, 1, 4, 0, 2} {
		rec := arrival(t, order{"x", seq})
		rec.DispatchedAt = time.Now().Add(-time.Hour).UTC()
		rec.Delay = time.Duration(seq+1) * time.Minute
		try(t, "Send", q.Send(t.Context(), rec))
	}
	start := time.Now()
	ds := receive(t, q, 10)
	wantOrders(t, "when all are due", ds, order{"x", 0}, order{"x", 1}, order{"x", 2}, order{"x", 3}, order{"x", 4})
	for i, d := range ds {
		due := start.Add(-time.Hour + time.Duration(i+1)*time.Minute)
		if off := d.Record.DispatchedAt.Sub(due); off < -30*time.Second || off > 30*time.Second || d.Record.Delay != 0 {
			t.Errorf("message %d is aged from %v with a delay of %v, want from %v, when it was due", i, d.Record.DispatchedAt, d.Record.Delay, due)
		}
	}
}

func batchIsStoredInOrder[TX any](t *testing.T, s *fixture[TX]) {
	q := s.queue("q", 0)
	const n = 500
	var items []outbox.Item
	for i := range n {
		items = append(items, outbox.Item{Seq: n - i, Record: arrival(t, order{fmt.Sprint("k", i%7), i / 7})})
	}
	results := make(chan outbox.Result, n)
	q.Publish(t.Context(), items, results)
	seqs := map[int]bool{}
	for range n {
		select {
		case r := <-results:
			if r.Err != nil || seqs[r.Seq] || r.Seq < 1 || r.Seq > n {
				t.Fatalf("result %+v", r)
			}
			seqs[r.Seq] = true
		case <-time.After(patience):
			t.Fatalf("%d results, want %d", len(seqs), n)
		}
	}
	var got []order
	for len(got) < n {
		ds := receive(t, q, 100)
		got = append(got, ordersOf(ds)...)
		try(t, "Ack", q.Ack(t.Context(), ds...))
	}
	perKey(t, got)
	// With a context that has ended nothing is known to be stored.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	q.Publish(ended, items[:1], results)
	if r := <-results; r.Err != nil && !errors.Is(r.Err, waybill.ErrUnavailable) {
		t.Errorf("Publish with a context that has ended = %v, want ErrUnavailable: it is no message's fault", r.Err)
	}
}

func recordsPassTheQueueUnchanged[TX any](t *testing.T, s *fixture[TX]) {
	q := s.queue("q", 0)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	var want []*waybill.Record
	for _, body := range [][]byte{every, nil, bytes.Repeat([]byte{0, 0xff, '\'', '\\'}, 1<<18), []byte("x")} {
		rec := arrival(t, order{"ключ-ä", 0})
		rec.Body, rec.ContentType, rec.Headers = body, "text/x; charset=\"ü\"", map[string]string{waybill.HeaderIdempotencyKey: "payment-42-v3 ü"}
		for name, value := range values {
			rec.Headers[name] = value
		}
		want = append(want, rec)
		try(t, "Send", q.Send(t.Context(), rec))
	}
	check := func(what string, ds []*waybill.Delivery) {
		t.Helper()
		if len(ds) != len(want) {
			t.Fatalf("%s: %d messages, want %d", what, len(ds), len(want))
		}
		for i, d := range ds {
			wantSame(t, fmt.Sprint(what, ", message ", i), want[i], d.Record)
		}
	}
	ds := receive(t, q, 10)
	check("at first", ds)
	try(t, "Retry", q.Retry(t.Context(), ds[0], 0)) // is stored anew
	try(t, "Release", q.Release(t.Context(), ds[1:]...))
	check("after a retry", receive(t, q, 10))
}

func keysOfAQueueDifferBytewise[TX any](t *testing.T, s *fixture[TX]) {
	for i, name := range []string{"q", "Q", "q ", "ъ"} {
		try(t, "Send", s.queue(name, 0).Send(t.Context(), arrival(t, order{"x", i})))
	}
	for i, name := range []string{"q", "Q", "q ", "ъ"} {
		q := s.queue(name, 0)
		ds := receive(t, q, 10)
		wantOrders(t, "queue "+name, ds, order{"x", i})
		try(t, "Ack", q.Ack(t.Context(), ds...))
	}
	// Each key is held apart from all others.
	var msgs []order
	for _, key := range unlike {
		msgs = append(msgs, order{key, 0}, order{key, 1})
	}
	s.local(msgs...)
	q := s.queue("q", 0)
	for range unlike {
		if ds := receive(t, q, 1); ds[0].Record.Key != bodyOf(ds[0].Record).Key || bodyOf(ds[0].Record).Seq != 0 {
			t.Errorf("delivered %v of key %q while no key but others is held", ordersOf(ds), ds[0].Record.Key)
		}
	}
	wantOrders(t, "while each key is held", glance(t, q, 10))
}
