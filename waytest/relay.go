package waytest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

func relayCases[TX any]() []testCase[TX] {
	return []testCase[TX]{
		{"AnyScheduleKeepsTheOrder", anyScheduleKeepsTheOrder[TX]},
		{"KeyInFlightIsNobodyElses", keyInFlightIsNobodyElses[TX]},
		{"ClaimSeesWhatTheLastOwnerHasPublished", claimSeesWhatTheLastOwnerHasPublished[TX]},
		{"SettleIsExact", settleIsExact[TX]},
		{"SettleWhoseContextEndedTearsNothingApart", settleWhoseContextEndedTearsNothingApart[TX]},
		{"PoisonedKeyWaitsAlone", poisonedKeyWaitsAlone[TX]},
		{"MessageRefusedOnceHoldsUpItsKeyAlone", messageRefusedOnceHoldsUpItsKeyAlone[TX]},
		{"WhatIsBlockedIsTriedAgainByItself", whatIsBlockedIsTriedAgainByItself[TX]},
		{"CursorNeverPassesARowThatIsDue", cursorNeverPassesARowThatIsDue[TX]},
		{"RouteIsBlockedAsOneEntry", routeIsBlockedAsOneEntry[TX]},
		{"ClaimOutOfTimeIsGoneOnWith", claimOutOfTimeIsGoneOnWith[TX]},
		{"ReleaseChoosesWhatItLetsGo", releaseChoosesWhatItLetsGo[TX]},
		{"RetryUnderWayHoldsUpNoRelease", retryUnderWayHoldsUpNoRelease[TX]},
		{"ClaimIsBoundedByRowsAndBytes", claimIsBoundedByRowsAndBytes[TX]},
		{"PartsAreClaimedApart", partsAreClaimedApart[TX]},
		{"DelayedMessageIsOrderedFromItsDueTime", delayedMessageIsOrderedFromItsDueTime[TX]},
		{"DelayedMessagesOfAKeyMoveInTheOrderTheyAreDue", delayedMessagesOfAKeyMoveInTheOrderTheyAreDue[TX]},
		{"OpenTransactionHoldsBackDelayedMessagesOfItsBucketAlone", openTransactionHoldsBackDelayedMessagesOfItsBucketAlone[TX]},
		{"DelayedMessageOfABusyKeyIsMoved", delayedMessageOfABusyKeyIsMoved[TX]},
		{"TransportsAreIndependent", transportsAreIndependent[TX]},
		{"DispatcherDoesNotWaitForAPublish", dispatcherDoesNotWaitForAPublish[TX]},
		{"RelaysShareTheWorkInOrder", relaysShareTheWorkInOrder[TX]},
		{"DecoratedStoreAndPublisherKeepTheirAbilities", decoratedStoreAndPublisherKeepTheirAbilities[TX]},
	}
}

// While one relay has the head of a key, others get nothing of that key, and
// everything of others.
func keyInFlightIsNobodyElses[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	stores := s.relays(2)
	p, others := sameBucket(1)[0], otherBuckets(40)
	s.put(out, order{p, 1}, order{p, 2})
	stuck := s.claim(outbox.ClaimLimit{Rows: 1, Bytes: 1 << 20})
	if got := names(stuck.Rows()); got != p+"1" {
		t.Fatalf("claim of the stuck relay: %q", got)
	}
	s.put(out, order{p, 3})
	want := 0
	for i, key := range others {
		s.put(out, order{key, 0})
		want++
		if i%10 == 0 {
			s.put(out, order{"", i})
			want++
		}
	}
	var rows []outbox.ClaimedRow
	for _, store := range stores {
		for range 5 {
			more, err := visit(store, outbox.DefaultTransport, true)
			if err != nil {
				t.Fatal(err)
			}
			rows = append(rows, more...)
		}
	}
	if n := len(byKey(rows)[p]); n > 0 {
		t.Errorf("others were given %d rows of the key in flight", n)
	}
	if len(rows) != want && !s.OneClaim {
		t.Errorf("others were given %d rows, want all %d of other keys", len(rows), want)
	}
	s.settle(stuck, stuck.Rows())
	if rows, err := visit(stores[1], outbox.DefaultTransport, true); err != nil || !slices.Equal(byKey(rows)[p], []int{2, 3}) {
		t.Errorf("after the stuck relay: %q, %v, want 2 and 3 of the key", names(rows), err)
	}
}

// The stale snapshot: a relay that read before another one settled must not
// publish the rows that the other has published.
func claimSeesWhatTheLastOwnerHasPublished[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	const rows, keys = 90, 3
	var msgs []any
	for i := range rows {
		msgs = append(msgs, order{sameBucket(keys)[i%keys], i / keys})
	}
	s.put(out, msgs...)
	var mu sync.Mutex
	var got []order
	var all sync.WaitGroup
	for _, store := range append(s.relays(2), s.relays(2)...) {
		all.Go(func() {
			for start := time.Now(); time.Since(start) < patience; {
				c, err := store.Claim(context.Background(), outbox.DefaultTransport, outbox.Keyed, outbox.ClaimLimit{Rows: 2, Bytes: 1 << 20})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				done := len(got) >= rows
				for _, row := range c.Rows() {
					got = append(got, bodyOf(row.Record))
				}
				mu.Unlock()
				if len(c.Rows()) > 0 {
					if err := c.Settle(context.Background(), c.Rows(), nil); err != nil {
						t.Error(err)
					}
				}
				if done {
					return
				}
			}
		})
	}
	all.Wait()
	if perKey(t, got); len(got) != rows {
		t.Errorf("%d rows were published, want each of %d once", len(got), rows)
	}
}

func settleIsExact[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	s.put(out, order{"a", 1}, order{"a", 2}, order{"a", 3}, order{"b", 1}, order{"b", 2}, order{"c", 1}, order{"", 1}, order{"", 2}, order{"", 3})
	s.wantBacklog("dispatched", outbox.Backlog{Pending: 9})
	var claims []outbox.Claim
	claimed := 0
	for c := s.claim(manyRows); len(c.Rows()) > 0 && claimed < 9; c = s.claim(manyRows) {
		claims = append(claims, c)
		claimed += len(c.Rows())
	}
	if claimed != 9 {
		t.Fatalf("%d rows were claimed, want 9", claimed)
	}
	published := map[order]bool{{"a", 1}: true, {"b", 1}: true, {"", 2}: true}
	refused := map[order]bool{{"b", 2}: true, {"c", 1}: true, {"", 3}: true}
	for _, c := range claims {
		var gone []outbox.ClaimedRow
		var failed []outbox.Failure
		for _, row := range c.Rows() {
			if o := bodyOf(row.Record); published[o] {
				gone = append(gone, row)
			} else if refused[o] {
				failed = append(failed, outbox.Failure{Row: row, Err: errRefused, RetryIn: time.Hour})
			}
			if row.Failures != 0 {
				t.Errorf("a row that was never published has %d failures", row.Failures)
			}
		}
		s.settle(c, gone, failed...)
	}
	s.wantBacklog("settled", outbox.Backlog{Pending: 6, Blocked: 3})
	s.wantWaiting("settled", order{"a", 2}, order{"a", 3}, order{"", 1})
	s.put(out, order{"b", 3}, order{"c", 2}, order{"", 4}, order{"a", 4})
	s.wantBacklog("behind blocked heads", outbox.Backlog{Pending: 10, Blocked: 5})
	s.wantWaiting("behind blocked heads", order{"a", 2}, order{"a", 3}, order{"a", 4}, order{"", 1}, order{"", 4})

	// Failures are counted by head, from zero after the head is published. While a
	// key is blocked, its head is claimed alone.
	s.take(outbox.DefaultTransport)
	s.put(out, order{"f", 1}, order{"f", 2})
	for n, end := range []struct {
		published, failed []int
		want              string
		failures          int
	}{
		{nil, []int{0}, "f1 f2", 0}, {nil, []int{0}, "f1", 1}, {[]int{0}, nil, "f1", 2}, {nil, []int{0}, "f2", 0}, {nil, nil, "f2", 1}, {[]int{0}, nil, "f2", 1},
	} {
		c := s.claim(manyRows)
		if len(c.Rows()) == 0 || names(c.Rows()) != end.want || c.Rows()[0].Failures != end.failures {
			t.Fatalf("claim %d: %q, want %q with %d failures: %+v", n, names(c.Rows()), end.want, end.failures, c.Rows())
		}
		var gone []outbox.ClaimedRow
		var failed []outbox.Failure
		for _, i := range end.published {
			gone = append(gone, c.Rows()[i])
		}
		for _, i := range end.failed {
			failed = append(failed, outbox.Failure{Row: c.Rows()[i], Err: errRefused})
		}
		s.settle(c, gone, failed...)
	}
	s.wantBacklog("in the end", outbox.Backlog{Pending: 5, Blocked: 5})
}

// Whether it worked is not known then, but it is all or nothing.
func settleWhoseContextEndedTearsNothingApart[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	s.put(out, order{"k", 0}, order{"k", 1}, order{"k", 2})
	c := s.claim(manyRows)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := c.Settle(ctx, c.Rows()[:2], []outbox.Failure{{Row: c.Rows()[2], Err: errRefused}})
	settled, untouched := "k2", "k0 k1 k2"
	await(t, "the rows are free again", func() bool { got := names(s.peek(outbox.DefaultTransport)); return got == settled || got == untouched })
	if got := names(s.peek(outbox.DefaultTransport)); err == nil && got != settled {
		t.Errorf("Settle = nil, and %q is left, want %q", got, settled)
	}
}

func poisonedKeyWaitsAlone[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	var msgs []any
	for i := range 30 {
		msgs = append(msgs, order{fmt.Sprintf("k%d", i%3), i / 3})
	}
	s.put(out, append(msgs, order{"", 0}, order{"", 1})...) // without a key one is poisoned, too
	poisoned := true
	sink := &recorder{refuse: func(rec *waybill.Record) error {
		if o := bodyOf(rec); poisoned && (o == order{"k1", 4} || o == order{"", 0}) {
			return errRefused
		}
		return nil
	}}
	cfg := outbox.RelayConfig{Retry: noRetry}
	s.drain(sink, cfg)
	if diff := cmp.Diff(map[string]int{"k0": 10, "k1": 4, "k2": 10, "": 1}, perKey(t, sink.got)); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	s.wantBacklog("poisoned", outbox.Backlog{Pending: 7, Blocked: 7})
	// New rows of the key stay behind its head; another key's flow.
	s.put(out, order{"k1", 10}, order{"k2", 10})
	s.drain(sink, cfg)
	if got := perKey(t, sink.got); got["k1"] != 4 || got["k2"] != 11 {
		t.Errorf("published %v, want k1 to wait and k2 to go on", got)
	}
	operator := s.operator()
	blocked, err := operator.Blocked(t.Context(), "", 0)
	if err != nil || len(blocked) != 2 {
		t.Fatalf("Blocked = %+v, %v", blocked, err)
	}
	for _, b := range blocked {
		// Nothing orders rows without key: one may be taken by another worker in the
		// moment in which it is refused, and is refused there as well.
		twice := b.Key == "" && b.Failures == 2
		if b.LastError != errRefused.Error() || b.Failures != 1 && !twice || b.Key == "k1" && b.Waiting != 7 || b.Key == "" && b.Waiting != 1 {
			t.Errorf("blocked: %+v", b)
		}
	}
	poisoned = false
	if n, err := operator.Release(t.Context(), admin.BlockedQuery{}); err != nil || n != 2 {
		t.Fatalf("Release = %d, %v", n, err)
	}
	s.drain(sink, cfg)
	if diff := cmp.Diff(map[string]int{"k0": 10, "k1": 11, "k2": 11, "": 2}, perKey(t, sink.got)); diff != "" {
		t.Errorf("published after the cure (-want +got):\n%s", diff)
	}
	if blocked, err := operator.Blocked(t.Context(), "", 0); err != nil || len(blocked) != 0 {
		t.Errorf("still blocked: %+v, %v", blocked, err)
	}
}

// Others of its bucket, of another and without a key go out while it waits. How
// long it waits is longer each time, until a slow machine has kept up with it.
func messageRefusedOnceHoldsUpItsKeyAlone[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	keys := sameBucket(20)
	for delay := 250 * time.Millisecond; delay < patience/2; delay *= 2 {
		late, others := keys[0], []string{keys[1], otherBuckets(1)[0] + keys[0], ""}
		keys = keys[2:]
		refused := make(chan struct{})
		tries := 0
		sink := &recorder{refuse: func(rec *waybill.Record) error {
			if bodyOf(rec) != (order{late, 1}) || tries > 0 {
				return nil
			}
			tries++
			close(refused)
			return errRefused
		}}
		var first, then []any
		for seq := range 5 {
			first = append(first, order{late, seq})
			for _, key := range others {
				then = append(then, order{key, seq})
			}
		}
		stop := s.relaying(s.Store, sink, outbox.RelayConfig{Retry: waybill.Backoff{Delay: delay, Multiplier: 1, Jitter: -1}})
		s.put(out, first...)
		select {
		case <-refused:
		case <-time.After(patience):
			t.Fatal("nothing was refused")
		}
		s.put(out, then...)
		await(t, "all come", func() bool { return len(sink.all()) == len(first)+len(then) })
		stop()
		perKey(t, sink.got)
		if slices.Index(sink.got, order{late, 1}) == 1+len(then) || t.Failed() {
			return
		}
	}
	t.Error("others come after the message that was refused, however long it waits")
}

// A blocked key, route or message without key is tried again when the database's
// clock says so, with nothing new in its bucket and no operator at hand.
func whatIsBlockedIsTriedAgainByItself[TX any](t *testing.T, s *fixture[TX]) {
	routes := s.Store.Traits().BlocksRoutes
	for key, route := range map[string]bool{"k": false, "r": true, "": false} {
		out := s.outbox(outbox.Config{})
		var mu sync.Mutex
		tries := map[order]int{}
		sink := &recorder{refuse: func(rec *waybill.Record) error {
			mu.Lock()
			defer mu.Unlock()
			o := bodyOf(rec)
			if tries[o]++; tries[o] > 3 || key != "" && o.Seq > 0 {
				return nil
			}
			if route && routes {
				return &outbox.UnroutableError{Reason: "NO_ROUTE"}
			}
			return errRefused
		}}
		s.put(out, order{key, 0}, order{key, 1})
		stop := s.relaying(s.Store, sink, outbox.RelayConfig{Retry: waybill.Backoff{Delay: 50 * time.Millisecond, Multiplier: 1, Jitter: -1}})
		await(t, fmt.Sprintf("%q: all come", key), func() bool { return len(sink.all()) == 2 })
		stop()
		perKey(t, sink.all())
	}
}

// Whatever a relay remembers of rows that wait, it is not stale: a row that is
// due comes, and no row behind one that is due comes before it.
func cursorNeverPassesARowThatIsDue[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	k := sameBucket(4)
	a, b, c, d := k[0], k[1], k[2], k[3]
	s.put(out, order{a, 1}, order{a, 2}, order{b, 1}, order{b, 2}, order{c, 1})
	want := func(what string, rows ...order) outbox.Claim {
		t.Helper()
		got := s.claim(manyRows)
		if diff := cmp.Diff(group(rows), byKey(got.Rows())); diff != "" {
			t.Fatalf("%s: claim (-want +got):\n%s", what, diff)
		}
		return got
	}
	first := want("at first", order{a, 1}, order{a, 2}, order{b, 1}, order{b, 2}, order{c, 1})
	s.settle(first, nil, outbox.Failure{Row: s.row(first, order{a, 1}), Err: errRefused, RetryIn: 1500 * time.Millisecond})
	blockedAt := time.Now()
	soon := func() bool { return time.Since(blockedAt) < 700*time.Millisecond } // on a machine that is slow
	// An outage: b1 is not settled and must come again, before b2.
	for range 2 {
		if soon() {
			s.settle(want("beside a waiting key", order{b, 1}, order{b, 2}, order{c, 1}), nil)
		}
	}
	// b is refused for long; a is due first and must not wait for b.
	second := s.claim(manyRows)
	s.settle(second, []outbox.ClaimedRow{s.row(second, order{c, 1})}, outbox.Failure{Row: s.row(second, order{b, 1}), Err: errRefused, RetryIn: time.Hour})
	if soon() {
		want("while all wait")
	}
	s.put(out, order{d, 1})
	// No row changes: time alone makes a due, while every claim finds d.
	await(t, "a is due", func() bool {
		got := s.claim(manyRows)
		if len(got.Rows()) > 0 {
			s.settle(got, nil)
		}
		return !maps.EqualFunc(byKey(got.Rows()), group([]order{{d, 1}}), slices.Equal[[]int])
	})
	third := want("when a is due", order{a, 1}, order{d, 1})
	s.settle(third, []outbox.ClaimedRow{s.row(third, order{a, 1})})
	fourth := want("after the head got through", order{a, 2}, order{d, 1})
	s.settle(fourth, []outbox.ClaimedRow{s.row(fourth, order{a, 2})})
	s.settle(want("beside b", order{d, 1}), nil)
	// Another process changes the blocked keys, as an operator does.
	operator := s.operator()
	if s.Another != nil {
		operator = any(s.Another(t)).(admin.Database)
	}
	if n, err := operator.Release(t.Context(), admin.BlockedQuery{Key: b}); err != nil || n != 1 {
		t.Fatalf("Release = %d, %v", n, err)
	}
	last := want("after b was let go", order{b, 1}, order{d, 1})
	s.settle(last, []outbox.ClaimedRow{s.row(last, order{b, 1})})
	s.settle(want("after its head got through", order{b, 2}, order{d, 1}), nil)
}

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
	s.put(out, named("x", order{o, 0}), named("y", order{o, 1}), named("y", order{k, 2}), named("y", order{p, 0}), named("x", order{"", 0}))
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
	msgs := make([]any, 1000)
	for i := range msgs {
		msgs[i] = named("x", order{fmt.Sprint("k", i), 0})
	}
	s.put(out, msgs...)
	c := s.claim(outbox.ClaimLimit{Rows: 1, Bytes: 1 << 20})
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: &outbox.UnroutableError{Reason: "NO_ROUTE"}, RetryIn: time.Hour, Route: true})
	s.put(out, named("y", order{"other", 0}))
	empty := 0
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
			if got := names(c.Rows()); got != "other0" || empty == 0 {
				t.Errorf("%q came after %d claims that were out of time, want other0 after some", got, empty)
			}
			s.settle(c, nil)
			return
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

func claimIsBoundedByRowsAndBytes[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	const size = 10_000
	keys := otherBuckets(10)
	var msgs []any
	for i := range 40 {
		key := keys[i%10]
		if i >= 30 {
			key = ""
		}
		msgs = append(msgs, waybill.RawMessage{Name: "big", Key: key, ContentType: "application/octet-stream", Body: make([]byte, size)})
	}
	s.put(out, msgs...)
	// The bounds apply to each of two parts, and bytes may be exceeded by one row.
	for _, c := range []struct {
		max  outbox.ClaimLimit
		most int
	}{
		{outbox.ClaimLimit{Rows: 1, Bytes: 1 << 20}, 2}, {outbox.ClaimLimit{Rows: 2, Bytes: 1 << 20}, 4}, {outbox.ClaimLimit{Rows: 3, Bytes: 1 << 20}, 6}, {outbox.ClaimLimit{Rows: 20, Bytes: 1 << 20}, 40},
		{outbox.ClaimLimit{Rows: 100, Bytes: 8*size + size/2}, 18}, {outbox.ClaimLimit{Rows: 100, Bytes: 2*size + size/2}, 6}, {outbox.ClaimLimit{Rows: 100, Bytes: 1}, 2},
	} {
		for range 4 { // a store may serve other rows first each time
			got := s.claim(c.max)
			if n := len(got.Rows()); n < 1 || n > c.most {
				t.Errorf("Claim(%+v) = %d rows of %d bytes, want 1 to %d", c.max, n, size, c.most)
			}
			s.settle(got, nil)
		}
	}
}

func partsAreClaimedApart[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	var msgs []any
	for i := range 100 {
		msgs = append(msgs, order{"", i}, order{fmt.Sprint("k", i), 0})
	}
	s.put(out, msgs...)
	for _, part := range []outbox.Part{outbox.Keyed, outbox.Unkeyed} {
		for _, most := range []int{1, 10, 50} {
			limit := outbox.ClaimLimit{Rows: most, Bytes: 1 << 20}
			c, other := s.claimPart(part, limit), s.claimPart(part, limit) // two claims share the rows
			for _, row := range c.Rows() {
				if (row.Record.Key == "") != (part == outbox.Unkeyed) {
					t.Errorf("a claim of %v rows has one of the key %q", part, row.Record.Key)
				}
				if slices.ContainsFunc(other.Rows(), func(r outbox.ClaimedRow) bool { return r.ID == row.ID }) {
					t.Errorf("row %d is in two claims", row.ID)
				}
			}
			if len(c.Rows()) == 0 || len(other.Rows()) == 0 && !s.OneClaim {
				t.Errorf("claims of %d and %d %v rows, want some in both", len(c.Rows()), len(other.Rows()), part)
			}
			s.settle(other, nil)
			s.settle(c, nil)
		}
	}
	if c := s.claimPart(outbox.Retries, manyRows); len(c.Rows()) > 0 {
		t.Errorf("%d rows that were never refused are retries", len(c.Rows()))
	}
}

func transportsAreIndependent[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{Routes: waybill.Routes{"*": {"dead", "alive"}}})
	s.put(out, order{"k", 0}, order{"k", 1}, waybill.NewEnvelope(order{"k", 2}, waybill.Delay(time.Hour)))
	dead := &recorder{refuse: func(*waybill.Record) error { return fmt.Errorf("%w: connection refused", waybill.ErrUnavailable) }}
	s.relaying(s.Store, dead, outbox.RelayConfig{Transport: "dead"})
	alive := &recorder{}
	s.drain(alive, outbox.RelayConfig{Transport: "alive"})
	if diff := cmp.Diff([]order{{"k", 0}, {"k", 1}}, alive.got); diff != "" {
		t.Errorf("the healthy transport got (-want +got):\n%s", diff)
	}
	for transport, want := range map[string]outbox.Backlog{"dead": {Pending: 2, Delayed: 1}, "alive": {Delayed: 1}} {
		if left, err := s.Store.Backlog(t.Context(), transport); err != nil || left != want {
			t.Errorf("Backlog of %s = %+v, %v, want %+v: an outage is no message's failure", transport, left, err, want)
		}
	}
}

func dispatcherDoesNotWaitForAPublish[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	s.put(out, order{"k", 0}, order{"", 0})
	stuck := s.claim(manyRows)
	ctx, cancel := context.WithTimeout(t.Context(), patience/2)
	defer cancel()
	if err := send(ctx, out, order{"k", 1}, order{"", 1}); err != nil {
		t.Errorf("dispatch beside a publish = %v", err)
	}
	s.settle(stuck, nil)
	s.wantWaiting("after it", order{"", 0}, order{"", 1}, order{"k", 0}, order{"k", 1})
}

func relaysShareTheWorkInOrder[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	keys := append(append(otherBuckets(5), sameBucket(2)...), "")
	const dispatchers, each = 4, 60
	w := &watcher{last: map[string]int64{}}
	for _, store := range s.relays(3) {
		s.relaying(watchedStore{store, w}, &recorder{}, outbox.RelayConfig{Batch: 20})
	}
	var all sync.WaitGroup
	for i := range dispatchers {
		all.Go(func() {
			for n := range each {
				if err := send(context.Background(), out, order{keys[(i*each+n)%len(keys)], i*each + n}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	await(t, "all are published", func() bool { return w.count() >= dispatchers*each || t.Failed() })
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, bad := range w.bad {
		t.Errorf("out of order: %s", bad)
	}
	seen := map[int]int{}
	for _, o := range w.got {
		if seen[o.Seq]++; seen[o.Seq] > 1 {
			t.Errorf("message %d was published twice, and nothing had failed", o.Seq)
		}
	}
}
