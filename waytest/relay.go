package waytest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

func relayCases[TX any]() []testCase[TX] {
	return []testCase[TX]{
		{"AnyScheduleKeepsTheOrder", anyScheduleKeepsTheOrder[TX]},
		{"KeyInFlightIsNobodyElses", keyInFlightIsNobodyElses[TX]},
		{"ClaimSeesWhatTheLastOwnerHasPublished", claimSeesWhatTheLastOwnerHasPublished[TX]},
		{"SettleIsExact", settleIsExact[TX]},
		{"FailuresAreCountedByHead", failuresAreCountedByHead[TX]},
		{"SettleWhoseContextEndedTearsNothingApart", settleWhoseContextEndedTearsNothingApart[TX]},
		{"PoisonedKeyWaitsAlone", poisonedKeyWaitsAlone[TX]},
		{"PagesOfTheOutboxSkipAndRepeatNothing", pagesOfTheOutboxSkipAndRepeatNothing[TX]},
		{"DelayedMessagesOfQueuesAreSelected", delayedMessagesOfQueuesAreSelected[TX]},
		{"MessageRefusedOnceHoldsUpItsKeyAlone", messageRefusedOnceHoldsUpItsKeyAlone[TX]},
		{"WhatIsBlockedIsTriedAgainByItself", whatIsBlockedIsTriedAgainByItself[TX]},
		{"CursorNeverPassesARowThatIsDue", cursorNeverPassesARowThatIsDue[TX]},
		{"RouteIsBlockedAsOneEntry", routeIsBlockedAsOneEntry[TX]},
		{"ClaimOutOfTimeIsGoneOnWith", claimOutOfTimeIsGoneOnWith[TX]},
		{"ReleaseChoosesWhatItLetsGo", releaseChoosesWhatItLetsGo[TX]},
		{"ReleaseIsAudited", releaseIsAudited[TX]},
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
		{"DecoratedStoreIsFenced", decoratedStoreIsFenced[TX]},
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
}

// failuresAreCountedByHead: from zero after the head is published. While a key is
// blocked, its head is claimed alone.
func failuresAreCountedByHead[TX any](t *testing.T, s *fixture[TX]) {
	s.put(s.outbox(outbox.Config{}), order{"f", 1}, order{"f", 2})
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
	s.wantBacklog("in the end", outbox.Backlog{})
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
