package waytest

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/worker"
)

func skippedParkedHeadLetsItsKeyGoOn[TX any](t *testing.T, s *fixture[TX]) {
	operator, q := s.retryAdmin(), s.retries(0)
	sent := add(t, q, order{"x", 0}, order{"x", 1})
	ds := receive(t, q, many)
	ds[0].Record.MarkHandled("stock")
	try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: ds[0], Attempt: attempt(1), Parked: true}, worker.Move{Delivery: ds[1]}))
	for n, key := range []string{"y", "z"} {
		try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: arrived(t, order{key, 0}), Attempt: attempt(n + 2), Parked: true}))
	}
	add(t, q, order{"x", 2}, order{"y", 1}, order{"z", 1})
	wantOrders(t, "parked", glance(t, q, many))
	skip := func(transport, key, to string, want int) {
		t.Helper()
		if n, err := operator.SkipParked(t.Context(), transport, key, to); err != nil || n != want {
			t.Errorf("SkipParked(%s, %s) = %d, %v, want %d", transport, key, n, err, want)
		}
	}
	skip("t", "X", "lost", 0)
	skip("T", "x", "lost", 0)
	skip("t", "x", "lost", 1)
	skip("t", "x", "lost", 0)
	s.wantLetterOf(sent[0].Record)
	s.wantAttempts("of the dead letter", sent[0].Record.ID, 1)
	ds = receive(t, q, many)
	wantOrders(t, "the rest of the key", ds, order{"x", 1}, order{"x", 2})
	if ds[0].Redelivered || ds[0].Failures != 0 {
		t.Errorf("the next of the key has %d failures, redelivered %v", ds[0].Failures, ds[0].Redelivered)
	}
	skip("t", "", "", 2)
	if m := s.failedOf("y"); m.FailureTransport != "failed" {
		t.Errorf("the dead letter is of %q, want the default of workers", m.FailureTransport)
	}
	wantOrders(t, "the other keys", receive(t, q, many), order{"y", 1}, order{"z", 1})
	s.wantSkipsAudited(`1 of {"key":"x","transport":"t"}`, `2 of {"key":"","transport":"t"}`)
	if n, err := s.deadLetters().RetryFailed(t.Context(), s.failedOf("x").Number); err != nil || n != 1 {
		t.Errorf("RetryFailed = %d, %v, want 1", n, err)
	}
	try(t, "Ack", q.Ack(t.Context(), ds...))
	wantOrders(t, "retried", receive(t, q, many), order{"x", 0})
}

// failedOf returns the only dead letter of a key.
func (s *fixture[TX]) failedOf(key string) admin.FailedMessage {
	s.t.Helper()
	found, err := s.deadLetters().Failed(s.t.Context(), admin.FailedQuery{Key: key})
	if err != nil || len(found) != 1 {
		s.t.Fatalf("Failed = %+v, %v, want one", found, err)
	}
	return found[0]
}

// wantSkipsAudited compares the audit with a SkipParked for each count and filter.
func (s *fixture[TX]) wantSkipsAudited(filters ...string) {
	s.t.Helper()
	entries, err := s.operatorOf().Audit(s.t.Context(), 0, 0)
	try(s.t, "Audit", err)
	var got, want []string
	for _, e := range slices.Backward(entries) {
		var filter map[string]string
		try(s.t, "Decode", json.Unmarshal(e.Filter, &filter))
		sorted, _ := json.Marshal(filter)
		got = append(got, fmt.Sprint(e.Action, ": ", e.Messages, " of ", string(sorted)))
	}
	for _, f := range filters {
		want = append(want, "retries release --skip-head: "+f)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("the audit (-want +got):\n%s", diff)
	}
}

// Two operators skip the parked heads of the same keys while a consumer works and later
// messages arrive.
func headsAreSkippedBesideAConsumer[TX any](t *testing.T, s *fixture[TX]) {
	operator, q := s.retryAdmin(), s.retries(0)
	const keys, each = 8, 6
	key := func(k int) string { return fmt.Sprint("k", k) }
	for k := range keys {
		try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: arrived(t, order{key(k), 0}), Attempt: attempt(1), Parked: true}))
		add(t, q, order{key(k), 1}, order{key(k), 2})
	}
	wantOrders(t, "parked", glance(t, q, many))
	var skipped atomic.Int64
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for k := range keys {
				n, err := operator.SkipParked(t.Context(), "t", key(k), "lost")
				try(t, "SkipParked", err)
				skipped.Add(int64(n))
			}
		})
	}
	all.Go(func() {
		for n := 3; n <= each; n++ {
			for k := range keys {
				try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: arrived(t, order{key(k), n})}))
			}
		}
	})
	got, last := 0, map[string]int{}
	for start := time.Now(); got < keys*each && time.Since(start) < patience; {
		ds := glance(t, q, many)
		for _, d := range ds {
			o := bodyOf(d.Record)
			if o.Seq != last[o.Key]+1 {
				t.Errorf("%v came after the message %d of its key", o, last[o.Key])
			}
			last[o.Key] = o.Seq
		}
		got += len(ds)
		if len(ds) > 0 {
			try(t, "Ack", q.Ack(t.Context(), ds...))
		}
	}
	all.Wait()
	wantOrders(t, "in the end", glance(t, q, many))
	letters, err := s.deadLetters().Failed(t.Context(), admin.FailedQuery{})
	if err != nil || got != keys*each || skipped.Load() != keys || len(letters) != keys {
		t.Errorf("%d messages came, %d were skipped, with %d dead letters, %v; want %d and %d", got, skipped.Load(), len(letters), err, keys*each, keys)
	}
}
