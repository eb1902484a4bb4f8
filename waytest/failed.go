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
		{"SkippedMessageLetsItsKeyGoOn", skippedMessageLetsItsKeyGoOn[TX]},
		{"RetriedMessageComesUnderItsID", retriedMessageComesUnderItsID[TX]},
		{"PassedHeadKeepsItsCount", passedHeadKeepsItsCount[TX]},
		{"RemovedMessageIsNeverSent", removedMessageIsNeverSent[TX]},
		{"FailureStoreShowsWhatItHas", failureStoreShowsWhatItHas[TX]},
		{"SamplesAreTheOldestAndTheNewest", samplesAreTheOldestAndTheNewest[TX]},
		{"MessagesAreFoundByIDAndCause", messagesAreFoundByIDAndCause[TX]},
		{"WorkersAreListedAndStopped", workersAreListedAndStopped[TX]},
		{"TransportsArePausedAndResumed", transportsArePausedAndResumed[TX]},
	}
}

// bodies lists the messages of a claim in its order: "a1 b1".
func bodies(rows []outbox.ClaimedRow) string {
	words := make([]string, len(rows))
	for i, row := range rows {
		o := bodyOf(row.Record)
		words[i] = fmt.Sprint(o.Key, o.Seq)
	}
	return strings.Join(words, " ")
}

// quickly is a relay that gives up after two refusals.
func quickly(policy outbox.Policy) outbox.RelayConfig {
	return outbox.RelayConfig{
		MaxAttempts: 2, Retry: waybill.Backoff{Delay: 10 * time.Millisecond, MaxDelay: 10 * time.Millisecond, Multiplier: 1, Jitter: -1},
		OnExhausted: func(string) outbox.Policy { return policy },
	}
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

// failed lists the dead letters that q selects: "k1 skipped, k2 removed".
func (s *fixture[TX]) failed(q admin.FailedQuery) string {
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

// blockedState returns the only blocked key or route.
func (s *fixture[TX]) blockedState() admin.BlockedKey {
	s.t.Helper()
	found, err := s.operator().Blocked(context.Background(), "", 0)
	if err != nil || len(found) != 1 {
		s.t.Fatalf("Blocked = %+v, %v, want one", found, err)
	}
	return found[0]
}

func (s *fixture[TX]) release(q admin.BlockedQuery, want int) {
	s.t.Helper()
	if n, err := s.operator().Release(context.Background(), q); err != nil || n != want {
		s.t.Fatalf("Release(%+v) = %d, %v, want %d", q, n, err, want)
	}
}

func skippedMessageLetsItsKeyGoOn[TX any](t *testing.T, s *fixture[TX]) {
	s.operator() // or skip
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
		t.Errorf("the dead letters are %q", got)
	}
	s.wantBacklog("skipped", outbox.Backlog{})
	if found, err := s.operator().Blocked(t.Context(), "", 0); err != nil || len(found) > 0 {
		t.Errorf("Blocked = %+v, %v", found, err)
	}
}

// onlyFailed returns the only dead letter that is not removed.
func (s *fixture[TX]) onlyFailed() admin.FailedMessage {
	s.t.Helper()
	found, err := s.operator().Failed(context.Background(), admin.FailedQuery{})
	if err != nil || len(found) != 1 {
		s.t.Fatalf("Failed = %+v, %v, want one", found, err)
	}
	return found[0]
}

func retriedMessageComesUnderItsID[TX any](t *testing.T, s *fixture[TX]) {
	operator := s.operator()
	out := s.outbox(outbox.Config{})
	s.put(out, waybill.NewEnvelope(order{"k", 0}, waybill.Header("tenant", "acme")), order{"k", 1})
	c := s.claim(manyRows)
	id := c.Rows()[0].Record.ID
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Skip, Exhausted: true})
	skipped := s.onlyFailed()
	if skipped.ID != id || skipped.Failures != 1 || skipped.LastError != errRefused.Error() || skipped.FirstFailedAt == nil || skipped.Name != "order.placed" || skipped.Transport != outbox.DefaultTransport {
		t.Errorf("failed: %+v", skipped)
	}
	elsewhere := any(s.relays(2)[1]).(admin.Database) // another store, if possible: it has dispatched nothing
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

// A pipelined relay may publish rows behind a refused head: they leave the outbox,
// and the head is retried.
func passedHeadKeepsItsCount[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	s.put(out, order{"k", 0}, order{"k", 1}, order{"k", 2})
	c := s.claim(manyRows)
	s.settle(c, c.Rows()[1:2], outbox.Failure{Row: c.Rows()[0], Err: errRefused})
	for failures := 1; failures < 4; failures++ {
		c := s.claim(manyRows)
		if got := bodies(c.Rows()); got != "k0" || c.Rows()[0].Failures != failures {
			t.Fatalf("claim of %q with %d failures, want the head with %d", got, c.Rows()[0].Failures, failures)
		}
		s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused})
	}
	c = s.claim(manyRows)
	s.settle(c, c.Rows())
	s.wantWaiting("the head got through", order{"k", 2})
}

func removedMessageIsNeverSent[TX any](t *testing.T, s *fixture[TX]) {
	operator := s.operator()
	out := s.outbox(outbox.Config{})
	s.put(out, order{"k", 0}, order{"k", 1})
	c := s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Skip, Exhausted: true})
	skipped := s.onlyFailed()
	if n, err := operator.RemoveFailed(t.Context(), skipped.Number); err != nil || n != 1 {
		t.Fatalf("RemoveFailed = %d, %v", n, err)
	}
	removed, err := operator.Failed(t.Context(), admin.FailedQuery{State: admin.Removed})
	if err != nil || len(removed) != 1 || removed[0].ID != skipped.ID || removed[0].RemovedAt == nil || removed[0].Bytes != 0 || removed[0].LastError == "" {
		t.Errorf("removed: %+v, %v", removed, err)
	}
	for what, change := range map[string]func(context.Context, ...int64) (int, error){"RemoveFailed": operator.RemoveFailed, "RetryFailed": operator.RetryFailed} {
		if n, err := change(t.Context(), skipped.Number); err != nil || n != 0 {
			t.Errorf("%s of a removed message = %d, %v", what, n, err)
		}
	}
	s.wantWaiting("the rest of the key", order{"k", 1})
}

func failureStoreShowsWhatItHas[TX any](t *testing.T, s *fixture[TX]) {
	operator := s.operator()
	out := s.outbox(outbox.Config{})
	s.put(out, named("x", order{"a", 0}), named("y", order{"b", 0}), named("y", order{"c", 0}), named("y", order{"c", 1}))
	c := s.claim(manyRows)
	s.settle(c, nil,
		outbox.Failure{Row: s.row(c, order{"a", 0}), Err: errRefused, Policy: outbox.Skip, Exhausted: true},
		outbox.Failure{Row: s.row(c, order{"b", 0}), Err: errRefused, Policy: outbox.Skip, Exhausted: true},
		outbox.Failure{Row: s.row(c, order{"c", 0}), Err: errRefused, Policy: outbox.Skip, Exhausted: true})
	c = s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: s.row(c, order{"c", 1}), Err: errRefused, Policy: outbox.Skip, Exhausted: true})
	all, err := operator.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(all) != 4 {
		t.Fatalf("Failed = %+v, %v", all, err)
	}
	for _, c := range []struct {
		q    admin.FailedQuery
		want string
	}{
		{admin.FailedQuery{State: admin.Skipped, Key: "c"}, "c0 skipped, c1 skipped"},
		{admin.FailedQuery{State: admin.Removed}, ""},
		{admin.FailedQuery{Name: "x"}, "a0 skipped"},
		{admin.FailedQuery{Key: "b"}, "b0 skipped"},
		{admin.FailedQuery{Key: "b", Numbers: []int64{}}, "b0 skipped"},
		{admin.FailedQuery{Transport: "elsewhere"}, ""},
		{admin.FailedQuery{Key: "c", After: all[2].Number, Limit: 5}, "c1 skipped"},
		{admin.FailedQuery{Key: "c", Limit: 1}, "c0 skipped"},
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
	if err != nil || len(stats) != 1 || stats[0].Failed != 4 || stats[0].Pending != 0 || stats[0].BlockedKeys != 0 {
		t.Errorf("OutboxStats = %+v, %v", stats, err)
	}
}
