package waytest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

func routeIsBlockedAsOneEntry[TX any](t *testing.T, s *fixture[TX]) {
	if !s.Store.Traits().BlocksRoutes {
		t.Skip("the store blocks no routes")
	}
	operator := s.operator()
	out := s.outbox(outbox.Config{})
	// x is unroutable: k's y waits behind its x, and X is another route. The keys
	// are of one bucket, so that one claim meets the route.
	keys := sameBucket(7)
	k, l, m, n, o, p := keys[0], keys[1], keys[2], keys[3], keys[4], keys[5]
	s.put(out, named("x", order{k, 0}), named("x", order{l, 0}), named("y", order{k, 1}), named("y", order{m, 0}), named("x", order{m, 1}), named("X", order{n, 0}), named("y", order{"", 1}))
	ill := true
	sink := &recorder{refuse: func(rec *waybill.Record) error {
		if rec.Name == "x" && ill {
			return &outbox.UnroutableError{Reason: "NO_ROUTE"}
		}
		return nil
	}}
	cfg := outbox.RelayConfig{Retry: noRetry, Workers: 1}
	s.drain(sink, cfg)
	if diff := cmp.Diff(group([]order{{m, 0}, {n, 0}, {"", 1}}), group(sink.got)); diff != "" {
		t.Errorf("published beside the route that leads nowhere (-want +got):\n%s", diff)
	}
	blocked, err := operator.Blocked(t.Context(), "", 0)
	if err != nil || len(blocked) != 1 || blocked[0].Route != "x" || blocked[0].Key != "" || blocked[0].Waiting != 3 {
		t.Fatalf("Blocked = %+v, %v, want one entry for x, with 3 rows", blocked, err)
	}
	wantPages(t, operator, blocked)
	s.put(out, named("x", order{o, 0}), named("y", order{o, 1}), named("y", order{k, 2}), named("y", order{p, 0}), named("x", order{"", 0}))
	rows, err := operator.Outbox(t.Context(), admin.OutboxQuery{Name: "x"})
	if err != nil || len(rows) != 5 || slices.ContainsFunc(rows, func(m admin.OutboxMessage) bool { return !m.Blocked }) {
		t.Errorf("Outbox of the route = %+v, %v, want 5 blocked rows", rows, err)
	}
	s.drain(sink, cfg)
	if diff := cmp.Diff(group([]order{{m, 0}, {n, 0}, {p, 0}, {"", 1}}), group(sink.got)); diff != "" {
		t.Errorf("published while the route is blocked (-want +got):\n%s", diff)
	}
	ill = false
	if n, err := operator.Release(t.Context(), admin.BlockedQuery{Route: "X"}); err != nil || n != 0 {
		t.Errorf("Release of another route = %d, %v", n, err)
	}
	if n, err := operator.Release(t.Context(), admin.BlockedQuery{Route: "x"}); err != nil || n != 1 {
		t.Errorf("Release = %d, %v, want 1", n, err)
	}
	s.drain(sink, cfg)
	want := []order{{k, 0}, {k, 1}, {k, 2}, {l, 0}, {m, 0}, {m, 1}, {n, 0}, {o, 0}, {o, 1}, {p, 0}, {"", 0}, {"", 1}}
	if diff := cmp.Diff(group(want), group(sink.got)); diff != "" {
		t.Errorf("published in the end (-want +got):\n%s", diff)
	}
	if blocked, err := operator.Blocked(t.Context(), "", 0); err != nil || len(blocked) != 0 {
		t.Errorf("still blocked: %+v, %v", blocked, err)
	}
}

// Behind a route with more rows than a claim has time to read past, others come
// nevertheless: what one claim has read the next need not.
func claimOutOfTimeIsGoneOnWith[TX any](t *testing.T, s *fixture[TX]) {
	if !s.Store.Traits().BlocksRoutes {
		t.Skip("the store blocks no routes")
	}
	out := s.outbox(outbox.Config{})
	fill := func(n int) {
		t.Helper()
		msgs := make([]any, n)
		for i := range msgs {
			msgs[i] = named("x", order{fmt.Sprint("k", i), 0})
		}
		s.put(out, msgs...)
	}
	fill(1000)
	c := s.claim(outbox.ClaimLimit{Rows: 1, Bytes: 1 << 20})
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: &outbox.UnroutableError{Reason: "NO_ROUTE"}, RetryIn: time.Hour, Route: true})
	for n, seq := 2000, 0; n < 100_000; n, seq = 2*n, seq+1 {
		s.put(out, named("y", order{"other", seq}))
		if s.claimedOutOfTime(fmt.Sprint("other", seq)) > 0 {
			return
		}
		fill(n) // a machine that was slow at first had time for all of them at once
	}
	t.Error("no claim was out of time, however many rows there are")
}

// claimedOutOfTime claims in little time until the message comes, publishes it and returns
// how many claims had no rows.
func (s *fixture[TX]) claimedOutOfTime(want string) (empty int) {
	t := s.t
	t.Helper()
	for limit := time.Millisecond; ; {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		c, err := s.Store.Claim(ctx, outbox.DefaultTransport, outbox.Keyed, outbox.ClaimLimit{Rows: 50, Bytes: 1 << 20})
		cancel()
		switch {
		case limit > patience:
			t.Fatalf("not within %v: %v", limit, err)
		case err != nil: // not even time to begin
			limit *= 2
		case len(c.Rows()) == 0:
			empty++
		default:
			if got := names(c.Rows()); got != want {
				t.Errorf("%q came after %d claims that were out of time, want %s", got, empty, want)
			}
			s.settle(c, c.Rows())
			return empty
		}
	}
}

func releaseChoosesWhatItLetsGo[TX any](t *testing.T, s *fixture[TX]) {
	operator := s.operator()
	out := s.outbox(outbox.Config{Routes: waybill.Routes{"*": {outbox.DefaultTransport, "other"}}})
	s.put(out, order{"a", 1}, order{"a", 2}, order{"A", 1}, order{"b", 1}, order{"", 1}, order{"", 2})
	var row int64
	for _, transport := range []string{outbox.DefaultTransport, "other"} {
		for {
			c, err := claimParts(s.Store, transport, manyRows)
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Rows()) == 0 {
				break
			}
			var failed []outbox.Failure
			for _, r := range c.Rows() {
				if o := bodyOf(r.Record); o != (order{"a", 2}) {
					failed = append(failed, outbox.Failure{Row: r, Err: errRefused, RetryIn: time.Hour})
					if o == (order{"", 2}) && transport == outbox.DefaultTransport {
						row = r.ID
					}
				}
			}
			s.settle(c, nil, failed...)
		}
	}
	s.wantBacklog("all blocked", outbox.Backlog{Pending: 6, Blocked: 6})
	for _, step := range []struct {
		q     admin.BlockedQuery
		n     int
		names string
	}{
		{admin.BlockedQuery{Key: "nobody"}, 0, ""},
		{admin.BlockedQuery{Transport: "nowhere"}, 0, ""},
		{admin.BlockedQuery{Transport: outbox.DefaultTransport, Key: "a"}, 1, "a1"},
		{admin.BlockedQuery{Transport: outbox.DefaultTransport, Row: row}, 1, "2 a1"},
		{admin.BlockedQuery{Transport: "other"}, 5, "2 a1"},
		{admin.BlockedQuery{Key: "A"}, 2, "2 A1 a1"},
	} {
		n, err := operator.Release(t.Context(), step.q)
		if err != nil || n != step.n {
			t.Errorf("Release(%+v) = %d, %v, want %d", step.q, n, err, step.n)
		}
		if got := names(s.peek(outbox.DefaultTransport)); got != step.names {
			t.Errorf("after Release(%+v): %q, want %q", step.q, got, step.names)
		}
	}
	if got := names(s.peek("other")); got != "1 2 A1 a1 b1" {
		t.Errorf("the other transport has %q", got)
	}
}

// A retry under way locks its own message only, however long it takes: the rest is
// released at once.
func retryUnderWayHoldsUpNoRelease[TX any](t *testing.T, s *fixture[TX]) {
	operator := s.operator()
	out := s.outbox(outbox.Config{})
	for i := range 6 {
		s.put(out, order{"", i})
	}
	c := s.claimPart(outbox.Unkeyed, manyRows)
	var failed []outbox.Failure
	for i, row := range c.Rows() {
		f := outbox.Failure{Row: row, Err: errRefused, RetryIn: time.Hour}
		if i == 3 {
			f.RetryIn = 3 * time.Millisecond
		}
		failed = append(failed, f)
	}
	s.settle(c, nil, failed...)
	trying := s.claimPart(outbox.Retries, manyRows)
	for start := time.Now(); len(trying.Rows()) == 0 && time.Since(start) < patience; {
		trying = s.claimPart(outbox.Retries, manyRows) // until it is due
	}
	if got := names(trying.Rows()); got != "3" {
		t.Fatalf("a relay tries %q, want 3", got)
	}
	if n, err := operator.Release(t.Context(), admin.BlockedQuery{}); err != nil || n != 6 {
		t.Errorf("Release = %d, %v, want 6", n, err)
	}
	s.settle(trying, trying.Rows())
	if got := names(s.peek(outbox.DefaultTransport)); got != "0 1 2 4 5" {
		t.Errorf("after Release: %q, want 0 1 2 4 5", got)
	}
}
