package waytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

func failureCases[TX any]() []testCase[TX] {
	return []testCase[TX]{
		{"ParkedKeyGoesOnInOrder", parkedKeyGoesOnInOrder[TX]},
		{"ReleasedKeyThatIsRefusedIsParkedAgain", releasedKeyThatIsRefusedIsParkedAgain[TX]},
		{"ReleaseIsOneRelaysAtATime", releaseIsOneRelaysAtATime[TX]},
		{"ReleaseInSmallClaims", releaseInSmallClaims[TX]},
		{"ParkedRowsWaitForTheirRoute", parkedRowsWaitForTheirRoute[TX]},
		{"KeysBehindARouteHoldUpNoRelease", keysBehindARouteHoldUpNoRelease[TX]},
		{"RowSkippedInAReleaseLetsTheRestGoOn", rowSkippedInAReleaseLetsTheRestGoOn[TX]},
		{"RouteThatWorksAgainFreesNoParkedKey", routeThatWorksAgainFreesNoParkedKey[TX]},
		{"SkippedMessageLetsItsKeyGoOn", skippedMessageLetsItsKeyGoOn[TX]},
		{"RetriedMessageComesUnderItsID", retriedMessageComesUnderItsID[TX]},
		{"PassedHeadKeepsItsCount", passedHeadKeepsItsCount[TX]},
		{"RemovedMessageIsNeverSent", removedMessageIsNeverSent[TX]},
		{"FailureStoreShowsWhatItHas", failureStoreShowsWhatItHas[TX]},
	}
}

// quickly is a relay that gives up after two refusals.
func quickly(policy outbox.Policy) outbox.RelayConfig {
	return outbox.RelayConfig{
		MaxAttempts: 2, Retry: waybill.Backoff{Delay: 10 * time.Millisecond, MaxDelay: 10 * time.Millisecond, Multiplier: 1, Jitter: -1},
		OnExhausted: func(string) outbox.Policy { return policy },
	}
}

// failureStore skips the case where there is none.
func (s *site[TX]) failureStore() (outbox.FailureStore, admin.Database) {
	s.t.Helper()
	store, ok := s.Store.(outbox.FailureStore)
	if !ok {
		s.t.Skip("the store keeps no failed messages")
	}
	return store, s.operator()
}

// refuser refuses the orders of a set while it is told to.
type refuser struct {
	recorder
	cured atomic.Bool
}

func refusing(bad ...order) *refuser {
	r := &refuser{}
	r.refuse = func(rec *waybill.Record) error {
		if !r.cured.Load() && slices.Contains(bad, bodyOf(rec)) {
			return errRefused
		}
		return nil
	}
	return r
}

// failed says what is in the failure store: "a1 parked, b1 skipped".
func (s *site[TX]) failed(q admin.FailedQuery) string {
	s.t.Helper()
	found, err := s.operator().Failed(context.Background(), q)
	if err != nil {
		s.t.Fatal(err)
	}
	words := make([]string, len(found))
	for i, m := range found {
		content, err := s.operator().FailedContent(context.Background(), m.Number)
		if err != nil {
			s.t.Fatal(err)
		}
		o := bodyOf(&waybill.Record{Body: content.Body})
		if m.State != admin.Removed && (o.Key != m.Key || m.Bytes != len(content.Body)) {
			s.t.Errorf("failed message %+v has the body %s", m, content.Body)
		}
		words[i] = fmt.Sprint(m.Key, o.Seq, " ", m.State)
	}
	return strings.Join(words, ", ")
}

// blockedState returns the only entry of what is blocked.
func (s *site[TX]) blockedState() admin.BlockedKey {
	s.t.Helper()
	found, err := s.operator().Blocked(context.Background(), "", 0)
	if err != nil || len(found) != 1 {
		s.t.Fatalf("Blocked = %+v, %v, want one", found, err)
	}
	return found[0]
}

func (s *site[TX]) release(q admin.BlockedQuery, want int) {
	s.t.Helper()
	if n, err := s.operator().Release(context.Background(), q); err != nil || n != want {
		s.t.Fatalf("Release(%+v) = %d, %v, want %d", q, n, err, want)
	}
}

// Whatever comes while a key is parked, and while it is let go, comes after what
// was parked: with two relays that remember how far they have read.
func parkedKeyGoesOnInOrder[TX any](t *testing.T, s *site[TX]) {
	s.failureStore()
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
	await(t, "the key is parked", func() bool { return s.failed(admin.FailedQuery{}) != "" })
	want := fmt.Sprintf("%s1 parked, %[1]s2 parked, %[1]s3 parked", k)
	if got := s.failed(admin.FailedQuery{}); got != want {
		t.Fatalf("the failure store has %q, want %q", got, want)
	}
	s.put(out, order{k, 4}, order{other, 1})
	await(t, "others go on", func() bool {
		left, err := s.Store.Left(context.Background(), outbox.DefaultTransport)
		return err == nil && len(sink.all()) == 3 && left == (outbox.Left{Pending: 1, Blocked: 1})
	})
	b := s.blockedState()
	if b.State != admin.Parked || b.Policy != "park" || b.Failures != 2 || b.NextAttemptAt != nil || b.Parked != 3 || b.Waiting != 1 || b.Key != k || b.LastError != errRefused.Error() {
		t.Errorf("blocked: %+v", b)
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
	if got := s.failed(admin.FailedQuery{State: admin.Parked}); got != "" {
		t.Errorf("the failure store still has %q", got)
	}
	for _, stop := range stops {
		stop()
	}
}

// An operator who releases too early loses nothing, and no order.
func releasedKeyThatIsRefusedIsParkedAgain[TX any](t *testing.T, s *site[TX]) {
	s.failureStore()
	out := s.outbox(outbox.Config{})
	sink := refusing(order{"k", 0})
	s.put(out, order{"k", 0}, order{"k", 1})
	stop := s.relaying(s.Store, sink, quickly(outbox.Park))
	await(t, "the key is parked", func() bool { return s.failed(admin.FailedQuery{}) != "" })
	s.put(out, order{"k", 2})
	first := s.blockedState()
	s.release(admin.BlockedQuery{Key: "k"}, 1)
	await(t, "the key is parked again", func() bool { b := s.blockedState(); return b.State == admin.Parked && b.Failures == 2 })
	if got := s.failed(admin.FailedQuery{}); got != "k0 parked, k1 parked" {
		t.Errorf("the failure store has %q", got)
	}
	if b := s.blockedState(); !b.FirstFailedAt.Equal(first.FirstFailedAt) {
		t.Errorf("it began at %v, want %v as before", b.FirstFailedAt, first.FirstFailedAt)
	}
	sink.cured.Store(true)
	s.release(admin.BlockedQuery{}, 1)
	await(t, "all come", func() bool { return len(sink.all()) == 3 })
	perKey(t, sink.all())
	stop()
}

// What is parked of a key is in one claim at a time, and no row of the key is in
// one of the outbox meanwhile, whoever asks.
func releaseIsOneRelaysAtATime[TX any](t *testing.T, s *site[TX]) {
	store, _ := s.failureStore()
	out := s.outbox(outbox.Config{})
	s.put(out, order{"k", 0}, order{"k", 1})
	c := s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Park, Exhausted: true})
	s.put(out, order{"k", 2})
	if c, err := store.ClaimReleasing(t.Context(), outbox.DefaultTransport, manyRows); err != nil || len(c.Rows()) > 0 {
		t.Fatalf("before the release: claim of %q, %v", names(c.Rows()), err)
	}
	s.release(admin.BlockedQuery{Key: "k"}, 1)
	mine := s.claimReleasing(s.Store)
	if got := bodies(mine.Rows()); got != "k0 k1" {
		t.Fatalf("the released claim has %q", got)
	}
	for _, other := range s.relays(2) { // processes, or workers of one
		if theirs := s.claimReleasing(other); len(theirs.Rows()) > 0 {
			t.Errorf("another relay was given %q as well", bodies(theirs.Rows()))
		}
		if rows, err := visit(other, outbox.DefaultTransport, false); err != nil || len(rows) > 0 {
			t.Errorf("another relay was given %q of the outbox, %v", names(rows), err)
		}
	}
	if n, err := s.operator().RemoveFailed(t.Context(), -mine.Rows()[1].ID); err != nil || n != 0 {
		t.Errorf("RemoveFailed of what a relay has in hand = %d, %v", n, err)
	}
	s.settle(mine, mine.Rows()[:1]) // a crash after the first
	s.wantWaiting("in the middle of a release")
	rest := s.claimReleasing(s.Store)
	if got := bodies(rest.Rows()); got != "k1" {
		t.Fatalf("after the first: %q", got)
	}
	s.settle(rest, rest.Rows())
	s.wantWaiting("after the release", order{"k", 2})
}

// claimReleasing waits until a claim can be had: another may hold the bucket.
func (s *site[TX]) claimReleasing(store outbox.Store) outbox.Claim {
	s.t.Helper()
	c, err := store.(outbox.FailureStore).ClaimReleasing(context.Background(), outbox.DefaultTransport, manyRows)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// bodies says what a claim has, in its order.
func bodies(rows []outbox.ClaimedRow) string {
	words := make([]string, len(rows))
	for i, row := range rows {
		o := bodyOf(row.Record)
		words[i] = fmt.Sprint(o.Key, o.Seq)
	}
	return strings.Join(words, " ")
}

// Claims of a few rows or bytes let keys go as well.
func releaseInSmallClaims[TX any](t *testing.T, s *site[TX]) {
	s.failureStore()
	out := s.outbox(outbox.Config{})
	sink := refusing(order{"a", 0}, order{"b", 0})
	for seq := range 5 {
		s.put(out, order{"a", seq}, order{"b", seq})
	}
	cfg := quickly(outbox.Park)
	cfg.Batch, cfg.BatchBytes = 3, 30
	stop := s.relaying(s.Store, sink, cfg)
	await(t, "both keys are parked", func() bool { return strings.Count(s.failed(admin.FailedQuery{}), "parked") == 10 })
	sink.cured.Store(true)
	s.release(admin.BlockedQuery{}, 2)
	await(t, "all come", func() bool { return len(sink.all()) == 10 })
	perKey(t, sink.all())
	stop()
}

// A route that leads nowhere holds what is parked as well, and is one entry.
func parkedRowsWaitForTheirRoute[TX any](t *testing.T, s *site[TX]) {
	store, _ := s.failureStore()
	if _, ok := s.Store.(outbox.RouteStore); !ok {
		t.Skip("the store blocks no routes")
	}
	out := s.outbox(outbox.Config{})
	s.put(out, named("x", order{"k", 0}), named("y", order{"k", 1}))
	c := s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Park, Exhausted: true})
	s.put(out, named("y", order{"l", 0}))
	c = s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Route: true, RetryIn: time.Hour})
	s.release(admin.BlockedQuery{Key: "k"}, 1)
	c = s.claimReleasing(store)
	if got := bodies(c.Rows()); got != "k0" {
		t.Fatalf("claim of %q, want k0 alone", got)
	}
	s.settle(c, c.Rows())
	if c := s.claimReleasing(store); len(c.Rows()) > 0 {
		t.Fatalf("claim of %q while its route waits", bodies(c.Rows()))
	}
	s.release(admin.BlockedQuery{Route: "y"}, 1)
	c = s.claimReleasing(store)
	if got := bodies(c.Rows()); got != "k1" || c.Rows()[0].RouteFailures != 1 {
		t.Fatalf("claim of %q: %+v", got, c.Rows())
	}
	s.settle(c, c.Rows())
	s.wantWaiting("the route works", order{"l", 0})
	if found, err := s.operator().Blocked(t.Context(), "", 0); err != nil || len(found) > 0 {
		t.Errorf("Blocked = %+v, %v", found, err)
	}
}

// Released keys whose route leads nowhere are in nobody's way.
func keysBehindARouteHoldUpNoRelease[TX any](t *testing.T, s *site[TX]) {
	store, _ := s.failureStore()
	if _, ok := s.Store.(outbox.RouteStore); !ok {
		t.Skip("the store blocks no routes")
	}
	out := s.outbox(outbox.Config{})
	small := outbox.Max{Rows: 4, Bytes: 1 << 20}
	for _, key := range append(otherBuckets(40), sameBucket(10)...) {
		s.put(out, named("x", order{key, 0}))
	}
	s.put(out, named("y", order{"z", 0}))
	for c := s.claim(manyRows); len(c.Rows()) > 0; c = s.claim(manyRows) {
		var parked []outbox.Failure
		for _, row := range c.Rows() {
			parked = append(parked, outbox.Failure{Row: row, Err: errRefused, Policy: outbox.Park, Exhausted: true})
		}
		s.settle(c, nil, parked...)
	}
	s.put(out, named("x", order{"behind", 0}))
	s.release(admin.BlockedQuery{}, 51)
	c := s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Route: true, RetryIn: time.Hour})
	c, err := store.ClaimReleasing(t.Context(), outbox.DefaultTransport, small)
	if err != nil || bodies(c.Rows()) != "z0" {
		t.Fatalf("claim of %q, %v, want z0 alone", bodies(c.Rows()), err)
	}
	s.settle(c, c.Rows())
	s.wantLeft("all others wait for the route", outbox.Left{Pending: 1, Blocked: 1})
}

func rowSkippedInAReleaseLetsTheRestGoOn[TX any](t *testing.T, s *site[TX]) {
	store, _ := s.failureStore()
	out := s.outbox(outbox.Config{})
	s.put(out, order{"k", 0}, order{"k", 1}, order{"k", 2})
	c := s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Park, Exhausted: true})
	s.release(admin.BlockedQuery{}, 1)
	c = s.claimReleasing(store)
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, RetryIn: time.Hour, Policy: outbox.Skip, Exhausted: true})
	if got := s.failed(admin.FailedQuery{}); got != "k0 skipped, k1 parked, k2 parked" {
		t.Errorf("the failure store has %q", got)
	}
	c = s.claimReleasing(store)
	if got := bodies(c.Rows()); got != "k1 k2" || c.Rows()[0].Failures != 0 {
		t.Errorf("released: %q, %+v", got, c.Rows())
	}
	s.settle(c, nil)
}

func routeThatWorksAgainFreesNoParkedKey[TX any](t *testing.T, s *site[TX]) {
	s.failureStore()
	if _, ok := s.Store.(outbox.RouteStore); !ok {
		t.Skip("the store blocks no routes")
	}
	out := s.outbox(outbox.Config{})
	s.put(out, named("x", order{"k", 0}))
	c := s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Park, Exhausted: true})
	s.put(out, named("x", order{"l", 0}), named("x", order{"k", 1}))
	c = s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Route: true})
	c = s.claim(manyRows)
	if got := bodies(c.Rows()); got != "l0" || c.Rows()[0].RouteFailures != 1 {
		t.Fatalf("claim of %q: %+v", got, c.Rows())
	}
	s.settle(c, c.Rows())
	if b := s.blockedState(); b.Key != "k" || b.State != admin.Parked || b.Waiting != 1 {
		t.Errorf("blocked: %+v", b)
	}
	s.wantWaiting("a parked key")
}

func skippedMessageLetsItsKeyGoOn[TX any](t *testing.T, s *site[TX]) {
	s.failureStore()
	out := s.outbox(outbox.Config{})
	for _, policy := range []outbox.Policy{outbox.Skip, outbox.Park} {
		unkeyed := refusing(order{"", 1})
		s.put(out, order{"", 0}, order{"", 1}, order{"", 2})
		stop := s.relaying(s.Store, unkeyed, quickly(policy))
		await(t, "two come and one is skipped", func() bool { return len(unkeyed.all()) == 2 && s.failed(admin.FailedQuery{}) == "1 skipped" })
		stop()
		if n, err := s.operator().RemoveFailed(t.Context(), s.onlyFailed().Number); err != nil || n != 1 {
			t.Fatalf("RemoveFailed = %d, %v", n, err)
		}
	}
	sink := refusing(order{"k", 1}, order{"k", 2})
	s.put(out, order{"k", 0}, order{"k", 1}, order{"k", 2}, order{"k", 3})
	stop := s.relaying(s.Store, sink, quickly(outbox.Skip))
	await(t, "the key goes on", func() bool { return len(sink.all()) == 2 })
	stop()
	if diff := cmp.Diff([]order{{"k", 0}, {"k", 3}}, sink.all()); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	if got := s.failed(admin.FailedQuery{Key: "k"}); got != "k1 skipped, k2 skipped" {
		t.Errorf("the failure store has %q", got)
	}
	s.wantLeft("skipped", outbox.Left{})
	if found, err := s.operator().Blocked(t.Context(), "", 0); err != nil || len(found) > 0 {
		t.Errorf("Blocked = %+v, %v", found, err)
	}
}

// onlyFailed returns the only message of the failure store that is not removed.
func (s *site[TX]) onlyFailed() admin.FailedMessage {
	s.t.Helper()
	found, err := s.operator().Failed(context.Background(), admin.FailedQuery{})
	if err != nil || len(found) != 1 {
		s.t.Fatalf("Failed = %+v, %v, want one", found, err)
	}
	return found[0]
}

func retriedMessageComesUnderItsID[TX any](t *testing.T, s *site[TX]) {
	_, operator := s.failureStore()
	out := s.outbox(outbox.Config{})
	s.put(out, waybill.NewEnvelope(order{"k", 0}, waybill.Header("tenant", "acme")), order{"k", 1})
	c := s.claim(manyRows)
	id := c.Rows()[0].Record.ID
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Skip, Exhausted: true})
	skipped := s.onlyFailed()
	if skipped.ID != id || skipped.Failures != 1 || skipped.LastError != errRefused.Error() || skipped.FirstFailedAt == nil || skipped.Name != "order.placed" || skipped.Transport != outbox.DefaultTransport {
		t.Errorf("failed: %+v", skipped)
	}
	elsewhere := any(s.relays(2)[1]).(admin.Database) // where nobody has dispatched anything
	if n, err := elsewhere.RetryFailed(t.Context(), skipped.Number, skipped.Number+1); err != nil || n != 1 {
		t.Fatalf("RetryFailed = %d, %v, want 1", n, err)
	}
	rows := s.take(outbox.DefaultTransport)
	if got := bodies(rows); got != "k1 k0" || rows[1].Record.ID != id || rows[1].Record.Headers["tenant"] != "acme" || rows[1].Failures != 0 {
		t.Errorf("in the outbox: %q, %+v", got, rows)
	}
	if n, err := operator.RetryFailed(t.Context(), skipped.Number); err != nil || n != 0 {
		t.Errorf("RetryFailed once more = %d, %v, want 0", n, err)
	}
}

// A pipelined relay may publish what is behind a refused head: that does not make
// the head a new one.
func passedHeadKeepsItsCount[TX any](t *testing.T, s *site[TX]) {
	out := s.outbox(outbox.Config{})
	s.put(out, order{"k", 0}, order{"k", 1}, order{"k", 2}, order{"k", 3})
	for failures := range 3 {
		c := s.claim(manyRows)
		if got := c.Rows()[0].Failures; got != failures {
			t.Fatalf("the head has %d failures, want %d", got, failures)
		}
		s.settle(c, c.Rows()[1:2], outbox.Failure{Row: c.Rows()[0], Err: errRefused})
	}
	s.wantWaiting("three were passed", order{"k", 0})
}

func removedMessageIsNeverSent[TX any](t *testing.T, s *site[TX]) {
	store, operator := s.failureStore()
	out := s.outbox(outbox.Config{})
	s.put(out, order{"k", 0}, order{"k", 1})
	c := s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Park, Exhausted: true})
	s.put(out, order{"k", 2})
	parked, err := operator.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(parked) != 2 {
		t.Fatalf("Failed = %+v, %v", parked, err)
	}
	if n, err := operator.RetryFailed(t.Context(), parked[0].Number); err != nil || n != 0 {
		t.Errorf("RetryFailed of a parked message = %d, %v: it would come behind the others of its key", n, err)
	}
	if n, err := operator.RemoveFailed(t.Context(), parked[0].Number); err != nil || n != 1 {
		t.Fatalf("RemoveFailed = %d, %v", n, err)
	}
	if got := s.failed(admin.FailedQuery{}); got != "k1 parked" {
		t.Errorf("the failure store has %q", got)
	}
	removed, err := operator.Failed(t.Context(), admin.FailedQuery{State: admin.Removed})
	if err != nil || len(removed) != 1 || removed[0].ID != parked[0].ID || removed[0].RemovedAt == nil || removed[0].Bytes != 0 || removed[0].LastError == "" {
		t.Errorf("removed: %+v, %v", removed, err)
	}
	if b := s.blockedState(); b.State != admin.Parked || b.HeadID != parked[1].ID || b.Parked != 1 || b.Waiting != 1 {
		t.Errorf("blocked: %+v", b)
	}
	if n, err := operator.RemoveFailed(t.Context(), parked[0].Number, parked[1].Number); err != nil || n != 1 {
		t.Errorf("RemoveFailed of the rest = %d, %v", n, err)
	}
	s.wantWaiting("nothing is parked, and nobody has released the key")
	s.release(admin.BlockedQuery{Key: "k"}, 1)
	if c := s.claimReleasing(store); len(c.Rows()) > 0 {
		t.Errorf("claim of %q, which was removed", bodies(c.Rows()))
	}
	s.wantWaiting("released", order{"k", 2})
}

func failureStoreShowsWhatItHas[TX any](t *testing.T, s *site[TX]) {
	_, operator := s.failureStore()
	out := s.outbox(outbox.Config{})
	s.put(out, named("x", order{"a", 0}), named("y", order{"b", 0}), named("y", order{"c", 0}), named("y", order{"c", 1}))
	c := s.claim(manyRows)
	s.settle(c, nil,
		outbox.Failure{Row: s.row(c, order{"a", 0}), Err: errRefused, Policy: outbox.Skip, Exhausted: true},
		outbox.Failure{Row: s.row(c, order{"b", 0}), Err: errRefused, Policy: outbox.Skip, Exhausted: true},
		outbox.Failure{Row: s.row(c, order{"c", 0}), Err: errRefused, Policy: outbox.Park, Exhausted: true})
	all, err := operator.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(all) != 4 {
		t.Fatalf("Failed = %+v, %v", all, err)
	}
	for _, c := range []struct {
		q    admin.FailedQuery
		want string
	}{
		{admin.FailedQuery{State: admin.Parked}, "c0 parked, c1 parked"},
		{admin.FailedQuery{State: admin.Removed}, ""},
		{admin.FailedQuery{Name: "x"}, "a0 skipped"},
		{admin.FailedQuery{Key: "b"}, "b0 skipped"},
		{admin.FailedQuery{Key: "b", Numbers: []int64{}}, "b0 skipped"},
		{admin.FailedQuery{Transport: "elsewhere"}, ""},
		{admin.FailedQuery{Key: "c", After: all[2].Number, Limit: 5}, "c1 parked"},
		{admin.FailedQuery{Key: "c", Limit: 1}, "c0 parked"},
		{admin.FailedQuery{Numbers: []int64{all[0].Number, 1 << 40}}, all[0].Key + "0 " + all[0].State},
	} {
		if got := s.failed(c.q); got != c.want {
			t.Errorf("Failed(%+v): %q, want %q", c.q, got, c.want)
		}
	}
	if _, err := operator.FailedContent(t.Context(), 1<<40); !errors.Is(err, waybill.ErrNotFound) {
		t.Errorf("FailedContent of none: %v", err)
	}
	stats, err := operator.OutboxStats(t.Context())
	if err != nil || len(stats) != 1 || stats[0].Failed != 4 || stats[0].Pending != 0 || stats[0].BlockedKeys != 1 {
		t.Errorf("OutboxStats = %+v, %v", stats, err)
	}
}
