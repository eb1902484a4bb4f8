package waytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

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
		var got []*waybill.Delivery
		for len(got) < 3 {
			ds := receive(t, q, 40)
			try(t, "Ack", q.Ack(t.Context(), ds...))
			got = append(got, ds...)
			if took := time.Since(start); took < delay && len(got) > 2 {
				t.Errorf("%s: the delayed one came after %v, want %v", what, took, delay)
			}
		}
		wantOrders(t, what, got, order{"x", 1}, order{"x", 2}, order{"x", 0})
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
			if got := glance(t, q, 40); len(got) > 0 {
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
	ds := receive(t, q, 100)
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
	ds := receive(t, q, 40)
	check("at first", ds)
	try(t, "Retry", q.Retry(t.Context(), ds[0], 0)) // is stored anew
	try(t, "Release", q.Release(t.Context(), ds[1:]...))
	check("after a retry", receive(t, q, 40))
}

func keysOfAQueueDifferBytewise[TX any](t *testing.T, s *fixture[TX]) {
	for i, name := range []string{"q", "Q", "q ", "ъ"} {
		try(t, "Send", s.queue(name, 0).Send(t.Context(), arrival(t, order{"x", i})))
	}
	for i, name := range []string{"q", "Q", "q ", "ъ"} {
		q := s.queue(name, 0)
		ds := receive(t, q, 40)
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
	wantOrders(t, "while each key is held", glance(t, q, 40))
}
