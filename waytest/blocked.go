package waytest

import (
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

func poisonedKeyWaitsAlone[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	var msgs []any
	for i := range 30 {
		msgs = append(msgs, order{fmt.Sprintf("k%d", i%3), i / 3})
	}
	s.put(out, append(msgs, order{"", 0}, order{"", 1})...) // without a key one is poisoned, too
	operator, poisoned := s.operator(), true
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
	blocked, err := operator.Blocked(t.Context(), "", 0)
	if err != nil || len(blocked) != 2 {
		t.Fatalf("Blocked = %+v, %v", blocked, err)
	}
	for _, b := range blocked {
		// Nothing orders rows without key: one may be taken by another worker in the
		// moment in which it is refused, and is refused there as well.
		if b.LastError != errRefused.Error() || b.Failures != 1 && (b.Key != "" || b.Failures != 2) || b.Key == "k1" && b.Waiting != 7 || b.Key == "" && b.Waiting != 1 {
			t.Errorf("blocked: %+v", b)
		}
	}
	wantPages(t, operator, blocked)
	for _, q := range []admin.OutboxQuery{{Key: "k1"}, {Key: "k1", Name: order{}.MessageName()}} {
		rows, err := operator.Outbox(t.Context(), q)
		if err != nil || len(rows) != 7 || slices.ContainsFunc(rows, func(m admin.OutboxMessage) bool { return m.Key != "k1" || !m.Blocked }) {
			t.Errorf("Outbox of %+v = %+v, %v, want 7 blocked rows", q, rows, err)
		}
	}
	if rows, err := operator.Outbox(t.Context(), admin.OutboxQuery{Name: order{}.MessageName(), Limit: 3}); err != nil || len(rows) != 3 {
		t.Errorf("Outbox = %+v, %v, want 3 rows", rows, err)
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

// wantPages compares BlockedKeys, of each key and an entry a page, with what Blocked has returned.
func wantPages(t *testing.T, operator admin.Database, want []admin.BlockedKey) {
	t.Helper()
	want = slices.Clone(want)
	for i, w := range want {
		if w.Key != "" {
			one, err := operator.BlockedKeys(t.Context(), admin.BlockedKeysQuery{Key: w.Key})
			if diff := cmp.Diff([]admin.BlockedKey{w}, one); err != nil || diff != "" {
				t.Errorf("BlockedKeys of a key: %v (-want +got):\n%s", err, diff)
			}
		}
		want[i].Waiting, want[i].Parked = 0, 0
	}
	var got []admin.BlockedKey
	q := admin.BlockedKeysQuery{Limit: 1}
	for range len(want) + 1 {
		page, err := operator.BlockedKeys(t.Context(), q)
		if err != nil {
			t.Fatalf("BlockedKeys: %v", err)
		}
		if len(page) == 0 {
			break
		}
		got, q.After = append(got, page...), &page[0]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pages of BlockedKeys (-want +got):\n%s", diff)
	}
	if one, err := operator.BlockedKeys(t.Context(), admin.BlockedKeysQuery{Transport: want[0].Transport, Key: "no such key"}); err != nil || len(one) != 0 {
		t.Errorf("BlockedKeys of another key = %+v, %v", one, err)
	}
}

// Others of its bucket, of another and without a key go out while it waits. How
// long it waits is longer each time, until a slow machine has kept up with it.
func messageRefusedOnceHoldsUpItsKeyAlone[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	keys := sameBucket(20)
	for delay := 250 * time.Millisecond; delay < patience/6; delay *= 2 {
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
	s.settle(first, nil, outbox.Failure{Row: s.row(first, order{a, 1}), Err: errRefused, RetryIn: 6 * time.Second})
	blockedAt := time.Now()
	soon := func() bool { return time.Since(blockedAt) < 2*time.Second } // on a machine that is slow
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

// An entry that is due already is released, too, and on record.
func releaseIsAudited[TX any](t *testing.T, s *fixture[TX]) {
	operator := s.operatorOf()
	out := s.outbox(outbox.Config{})
	s.put(out, order{"due", 0}, order{"waits", 0})
	c := s.claim(manyRows)
	s.settle(c, nil,
		outbox.Failure{Row: s.row(c, order{"due", 0}), Err: errRefused, RetryIn: time.Microsecond},
		outbox.Failure{Row: s.row(c, order{"waits", 0}), Err: errRefused, RetryIn: time.Hour})
	for i, q := range []admin.BlockedQuery{{Key: "waits"}, {Key: "due"}} {
		s.release(q, 1)
		entries, err := operator.Audit(t.Context(), 0, 0)
		if err != nil || len(entries) != i+1 || entries[0].Action != "outbox release" || entries[0].Messages != 1 {
			t.Errorf("the audit after the release of %s: %+v, %v, want %d entries of one key", q.Key, entries, err, i+1)
		}
	}
	s.release(admin.BlockedQuery{Key: "nope"}, 0)
	if entries, err := operator.Audit(t.Context(), 0, 0); err != nil || len(entries) != 2 {
		t.Errorf("the audit after a release of nothing: %+v, %v", entries, err)
	}
}
