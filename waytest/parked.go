package waytest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

func parkedCases[TX any]() []testCase[TX] {
	return []testCase[TX]{
		{"ParkedKeyGoesOnInOrder", parkedKeyGoesOnInOrder[TX]},
		{"ReleaseWakesRelays", releaseWakesRelays[TX]},
		{"ReleasedKeyThatIsRefusedIsParkedAgain", releasedKeyThatIsRefusedIsParkedAgain[TX]},
		{"ParkedRowsAreClaimedByNoRelay", parkedRowsAreClaimedByNoRelay[TX]},
		{"ParkedRowsWaitForTheirRoute", parkedRowsWaitForTheirRoute[TX]},
		{"ReleaseOfManyKeysKeepsTheirOrder", releaseOfManyKeysKeepsTheirOrder[TX]},
		{"SkippedHeadLetsAParkedKeyGoOn", skippedHeadLetsAParkedKeyGoOn[TX]},
		{"RouteThatWorksAgainFreesNoParkedKey", routeThatWorksAgainFreesNoParkedKey[TX]},
		{"ReleasesAreAudited", releasesAreAudited[TX]},
		{"RebucketBesideAReleaseLeavesNoKeyParked", rebucketBesideAReleaseLeavesNoKeyParked[TX]},
	}
}

// park claims and parks the key of a message.
func (s *fixture[TX]) park(head order) {
	s.t.Helper()
	c := s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: s.row(c, head), Err: errRefused, Policy: outbox.Park, Exhausted: true})
}

// Messages dispatched while a key is parked or being released come after its parked
// ones, also with two relays that keep read positions.
func parkedKeyGoesOnInOrder[TX any](t *testing.T, s *fixture[TX]) {
	s.operator() // or skip
	out := s.outbox(outbox.Config{})
	keys := sameBucket(2)
	k, other := keys[0], keys[1]
	sink := refusing(order{k, 1})
	s.put(out, order{k, 0}, order{k, 1}, order{k, 2}, order{other, 0}, order{k, 3})
	var stops []func()
	for _, store := range s.relays(2) {
		cfg := quickly(outbox.Park)
		cfg.Standby = true
		stops = append(stops, s.relaying(store, sink, cfg))
		if s.Another == nil {
			break // one relay at a time
		}
	}
	await(t, "the key is parked", func() bool { return s.blocked(k).State == admin.Parked })
	s.put(out, order{k, 4}, order{other, 1})
	await(t, "the other key goes on", func() bool {
		left, err := s.Store.Backlog(context.Background(), outbox.DefaultTransport)
		return err == nil && len(sink.all()) == 3 && left == (outbox.Backlog{Pending: 4, Blocked: 4})
	})
	b := s.blocked(k)
	if b.State != admin.Parked || b.Policy != "park" || b.Failures != 2 || b.NextAttemptAt != nil || b.Parked != 3 || b.Waiting != 4 || b.Key != k || b.LastError != errRefused.Error() {
		t.Errorf("blocked: %+v", b)
	}
	if got := s.failed(admin.FailedQuery{}); got != "" {
		t.Errorf("the dead letters are %q", got)
	}
	sink.cured.Store(true)
	seq := 5
	s.put(out, order{k, seq})
	s.release(admin.BlockedQuery{Key: k}, 1)
	for len(sink.all()) < 7 || seq < 40 {
		seq++
		s.put(out, order{k, seq})
		if seq > 10_000 {
			t.Fatal("the released key does not come")
		}
	}
	await(t, "all come", func() bool { return len(sink.all()) == seq+1+2 })
	if n := perKey(t, sink.all()); n[k] != seq+1 {
		t.Errorf("%d of the key came, want %d", n[k], seq+1)
	}
	await(t, "nothing is blocked", func() bool {
		found, err := s.operator().Blocked(context.Background(), "", 0)
		return err == nil && len(found) == 0
	})
	for _, stop := range stops {
		stop()
	}
}

// blocked returns the entry of a key, or the zero value.
func (s *fixture[TX]) blocked(key string) admin.BlockedKey {
	s.t.Helper()
	found, err := s.operator().Blocked(context.Background(), "", 0)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, b := range found {
		if b.Key == key && b.Route == "" {
			return b
		}
	}
	return admin.BlockedKey{}
}

// A release that comes too early loses no message, and no order.
func releasedKeyThatIsRefusedIsParkedAgain[TX any](t *testing.T, s *fixture[TX]) {
	s.operator() // or skip
	out := s.outbox(outbox.Config{})
	sink := refusing(order{"k", 0})
	s.put(out, order{"k", 0}, order{"k", 1})
	stop := s.relaying(s.Store, sink, quickly(outbox.Park))
	await(t, "the key is parked", func() bool { return s.blocked("k").State == admin.Parked })
	s.put(out, order{"k", 2})
	s.release(admin.BlockedQuery{Key: "k"}, 1)
	await(t, "the key is parked again", func() bool { b := s.blocked("k"); return b.State == admin.Parked && b.Parked == 3 && b.Failures == 2 })
	sink.cured.Store(true)
	s.release(admin.BlockedQuery{}, 1)
	await(t, "all come", func() bool { return len(sink.all()) == 3 })
	perKey(t, sink.all())
	stop()
}

func parkedRowsAreClaimedByNoRelay[TX any](t *testing.T, s *fixture[TX]) {
	s.operator() // or skip
	out := s.outbox(outbox.Config{})
	s.put(out, order{"k", 0}, order{"k", 1})
	s.park(order{"k", 0})
	s.put(out, order{"k", 2}, order{"l", 0})
	for _, store := range s.relays(2) {
		for range 3 { // also with read positions above them
			if rows, err := visit(store, outbox.DefaultTransport, false); err != nil || names(rows) != "l0" {
				t.Errorf("a relay was given %q, %v, want l0", names(rows), err)
			}
		}
	}
	s.wantBacklog("parked", outbox.Backlog{Pending: 4, Blocked: 3})
	s.release(admin.BlockedQuery{Key: "k"}, 1)
	s.wantWaiting("released", order{"k", 0}, order{"k", 1}, order{"k", 2}, order{"l", 0})
}

// A blocked route blocks the rows of a released key as well.
func parkedRowsWaitForTheirRoute[TX any](t *testing.T, s *fixture[TX]) {
	s.operator() // or skip
	if !s.Store.Traits().BlocksRoutes {
		t.Skip("the store blocks no routes")
	}
	out := s.outbox(outbox.Config{})
	s.put(out, named("x", order{"k", 0}), named("y", order{"k", 1}))
	s.park(order{"k", 0})
	s.put(out, named("y", order{"l", 0}))
	c := s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Route: true, RetryIn: time.Hour})
	s.release(admin.BlockedQuery{Key: "k"}, 1)
	c = s.claim(manyRows)
	if got := bodies(c.Rows()); got != "k0" {
		t.Fatalf("claim of %q, want k0 alone", got)
	}
	s.settle(c, c.Rows())
	s.wantWaiting("its route waits")
	s.release(admin.BlockedQuery{Route: "y"}, 1)
	c = s.claim(manyRows)
	if got := bodies(c.Rows()); got != "l0" || !c.Rows()[0].Route || c.Rows()[0].Failures != 1 {
		t.Fatalf("claim of %q: %+v, want the row that stands for its route", got, c.Rows())
	}
	s.settle(c, c.Rows())
	s.wantWaiting("the route works", order{"k", 1})
	if found, err := s.operator().Blocked(t.Context(), "", 0); err != nil || len(found) > 0 {
		t.Errorf("Blocked = %+v, %v", found, err)
	}
}

// Parked keys come back in batches, beside a running relay.
func releaseOfManyKeysKeepsTheirOrder[TX any](t *testing.T, s *fixture[TX]) {
	s.operator() // or skip
	out := s.outbox(outbox.Config{})
	const keys, each = 300, 9
	for seq := range each {
		var msgs []any
		for k := range keys {
			msgs = append(msgs, order{fmt.Sprint("k", k), seq})
		}
		s.put(out, msgs...)
	}
	for parked := map[string]bool{}; len(parked) < keys; {
		c := s.claimPart(outbox.Keyed, manyRows)
		var failed []outbox.Failure
		for _, row := range c.Rows() {
			if key := row.Record.Key; !parked[key] {
				parked[key] = true
				failed = append(failed, outbox.Failure{Row: row, Err: errRefused, Policy: outbox.Park, Exhausted: true})
			}
		}
		s.settle(c, nil, failed...)
	}
	s.wantBacklog("parked", outbox.Backlog{Pending: keys * each, Blocked: keys * each})
	sink := &recorder{}
	stop := s.relaying(s.Store, sink, outbox.RelayConfig{})
	var msgs []any
	for k := range keys {
		msgs = append(msgs, order{fmt.Sprint("k", k), each})
	}
	s.put(out, msgs...)
	s.release(admin.BlockedQuery{}, keys)
	await(t, "all come", func() bool { return len(sink.all()) == keys*(each+1) })
	stop()
	perKey(t, sink.all())
	s.wantBacklog("in the end", outbox.Backlog{})
}

func skippedHeadLetsAParkedKeyGoOn[TX any](t *testing.T, s *fixture[TX]) {
	s.operator() // or skip
	out := s.outbox(outbox.Config{})
	s.put(out, order{"k", 0}, order{"k", 1}, order{"l", 0}, order{"l", 1})
	s.park(order{"k", 0})
	c := s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: s.row(c, order{"l", 0}), Err: errRefused, RetryIn: time.Hour})
	s.put(out, order{"k", 2})
	s.release(admin.BlockedQuery{Key: "k", SkipHead: true}, 1)
	s.wantWaiting("the rest of the key", order{"k", 1}, order{"k", 2})
	s.release(admin.BlockedQuery{Key: "l", SkipHead: true}, 1)
	s.wantWaiting("the rest of both", order{"k", 1}, order{"k", 2}, order{"l", 1})
	if got := s.failed(admin.FailedQuery{}); got != "k0 skipped, l0 skipped" {
		t.Errorf("the dead letters are %q", got)
	}
	if found, err := s.operator().Blocked(t.Context(), "", 0); err != nil || len(found) > 0 {
		t.Errorf("Blocked = %+v, %v", found, err)
	}
}

func routeThatWorksAgainFreesNoParkedKey[TX any](t *testing.T, s *fixture[TX]) {
	s.operator() // or skip
	if !s.Store.Traits().BlocksRoutes {
		t.Skip("the store blocks no routes")
	}
	out := s.outbox(outbox.Config{})
	s.put(out, named("x", order{"k", 0}))
	s.park(order{"k", 0})
	s.put(out, named("x", order{"l", 0}), named("x", order{"k", 1}))
	c := s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Route: true})
	c = s.claim(manyRows)
	if got := bodies(c.Rows()); got != "l0" || !c.Rows()[0].Route {
		t.Fatalf("claim of %q: %+v", got, c.Rows())
	}
	s.settle(c, c.Rows())
	if b := s.blockedState(); b.Key != "k" || b.State != admin.Parked || b.Waiting != 2 {
		t.Errorf("blocked: %+v", b)
	}
	s.wantWaiting("a parked key")
}

// The rows of a released key go out at once, and not with the next poll.
func releaseWakesRelays[TX any](t *testing.T, s *fixture[TX]) {
	s.operator() // or skip
	s.put(s.outbox(outbox.Config{}), order{"k", 0})
	s.park(order{"k", 0})
	wake := s.Store.Wake(outbox.DefaultTransport, outbox.Keyed)
	select {
	case <-wake: // by the dispatch
	default:
	}
	s.release(admin.BlockedQuery{}, 1)
	select {
	case <-wake:
	case <-time.After(5 * time.Second):
		t.Error("a release wakes no relay")
	}
}

// Each released entry is on record once: parked keys, keys that wait for a retry, and heads
// that are skipped.
func releasesAreAudited[TX any](t *testing.T, s *fixture[TX]) {
	operator, letters := s.operator(), s.operatorOf()
	out := s.outbox(outbox.Config{})
	keys := sameBucket(4)
	for _, key := range keys {
		s.put(out, order{key, 0})
	}
	c := s.claim(manyRows)
	var failures []outbox.Failure
	for i, key := range keys {
		f := outbox.Failure{Row: s.row(c, order{key, 0}), Err: errRefused, RetryIn: time.Hour}
		if i < 2 {
			f.Policy, f.Exhausted = outbox.Park, true
		}
		failures = append(failures, f)
	}
	s.settle(c, nil, failures...)
	ctx := admin.WithAction(t.Context(), admin.Action{Actor: "anna@shop", Filter: []byte(`{"all":true}`)})
	release := func(q admin.BlockedQuery, want, recorded int) {
		t.Helper()
		if n, err := operator.Release(ctx, q); err != nil || n != want {
			t.Errorf("Release(%+v) = %d, %v, want %d", q, n, err, want)
		}
		entries, err := letters.Audit(t.Context(), 0, 0)
		try(t, "Audit", err)
		n := 0
		for _, e := range entries {
			n += e.Messages
			if e.Action != "outbox release" || e.Actor != "anna@shop" || e.Messages < 1 {
				t.Errorf("the audit has %+v", e)
			}
		}
		if n != recorded {
			t.Errorf("after Release(%+v) %d entries are on record, want %d", q, n, recorded)
		}
	}
	release(admin.BlockedQuery{Key: "nobody"}, 0, 0)
	release(admin.BlockedQuery{Key: keys[0], SkipHead: true}, 1, 1)
	release(admin.BlockedQuery{Key: keys[2], SkipHead: true}, 1, 2)
	release(admin.BlockedQuery{}, 2, 4)
}
