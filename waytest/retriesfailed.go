package waytest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/worker"
)

// wantAttempts compares the recorded attempts at a message with attempt(n) for each n.
func (s *fixture[TX]) wantAttempts(what string, id waybill.MessageID, ns ...int) {
	s.t.Helper()
	want := []admin.FailedAttempt{}
	for i, n := range ns {
		a := attempt(n)
		want = append(want, admin.FailedAttempt{Attempt: i + 1, At: a.At, Worker: a.Worker, Handler: a.Handler, ErrorType: a.Type, Error: a.Error, Stack: a.Stack, Fingerprint: a.Fingerprint})
	}
	got, err := s.retryAdmin().FailedAttempts(s.t.Context(), "t", id)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		s.t.Errorf("%s: attempts (%v) (-want +got):\n%s", what, err, diff)
	}
}

func attemptsAreCompleteAndInOrder[TX any](t *testing.T, s *fixture[TX]) {
	q := s.retries(0)
	s.retryAdmin() // or skip
	first := arrived(t, order{"x", 0})
	try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: first, Attempt: attempt(20)}, worker.Move{Delivery: arrived(t, order{"x", 1})}))
	ns := []int{20}
	for n := 19; n > 8; n-- { // the order is that of the failures, not of the clocks
		d := receive(t, q, 1)[0]
		if d.Failures != len(ns) {
			t.Fatalf("%d failures, want %d", d.Failures, len(ns))
		}
		try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: d, Attempt: attempt(n)}))
		ns = append(ns, n)
	}
	s.wantAttempts("after retries", first.Record.ID, ns...)
	try(t, "Release", q.Release(t.Context(), receive(t, q, 1)...))
	try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: receive(t, q, 1)[0]}))
	try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: receive(t, q, 1)[0], Attempt: attempt(1), DeadLetters: "lost"}))
	s.wantAttempts("of the dead letter", first.Record.ID, append(ns, 1)...)
	if m := s.onlyLetter(); m.Failures != len(ns)+1 || !m.FirstFailedAt.Equal(attempt(1).At) || m.LastError != "refused 1" {
		t.Errorf("the dead letter: %+v", m)
	}
}

func successEndsTheRecordOfFailures[TX any](t *testing.T, s *fixture[TX]) {
	a, q, letters := s.retries(1500*time.Millisecond), s.retries(0), s.deadLetters()
	s.retryAdmin() // or skip
	mended, other := arrived(t, order{"x", 0}), arrived(t, order{"y", 0})
	for _, d := range []*waybill.Delivery{mended, other} {
		try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: d, Attempt: attempt(1), DeadLetters: "lost"}))
	}
	found, err := letters.Failed(t.Context(), admin.FailedQuery{Key: "x"})
	if err != nil || len(found) != 1 {
		t.Fatalf("Failed = %+v, %v", found, err)
	}
	if n, err := letters.RetryFailed(t.Context(), found[0].Number); err != nil || n != 1 {
		t.Fatalf("RetryFailed = %d, %v", n, err)
	}
	late := receive(t, a, 1)
	ds := receive(t, q, 1)
	wantLost(t, "Ack of a late holder", a.Ack(t.Context(), late...))
	s.wantAttempts("before the success", mended.Record.ID, 1)
	try(t, "Ack", q.Ack(t.Context(), ds...))
	s.wantAttempts("after the success", mended.Record.ID)
	s.wantAttempts("of another message", other.Record.ID, 1)
	if m := s.onlyLetter(); m.ID != other.Record.ID {
		t.Errorf("the dead letter is %+v, want that of the other message", m)
	}
}

func messageThatFailsAgainKeepsItsEntry[TX any](t *testing.T, s *fixture[TX]) {
	q, letters := s.retries(0), s.deadLetters()
	d := arrived(t, order{"x", 0})
	fail := func(m *waybill.Delivery, n int) {
		t.Helper()
		try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: m, Attempt: attempt(n), DeadLetters: fmt.Sprint("lost", n)}))
	}
	fail(d, 1)
	fail(d, 1) // its answer was lost
	first := s.onlyLetter()
	if first.Failures != 1 {
		t.Errorf("%d failures after one that was reported twice, want 1", first.Failures)
	}
	fail(d, 2)
	second := s.onlyLetter()
	if second.Number != first.Number || second.Failures != 2 || second.LastError != "refused 2" || second.Fingerprint != "f2" || second.FailureTransport != "lost2" || !second.FirstFailedAt.Equal(*first.FirstFailedAt) || second.FailedAt.Before(first.FailedAt) {
		t.Errorf("the entry was %+v and is %+v", first, second)
	}
	s.wantAttempts("of both", d.Record.ID, 1, 2)
	if n, err := letters.RemoveFailed(t.Context(), first.Number); err != nil || n != 1 {
		t.Fatalf("RemoveFailed = %d, %v", n, err)
	}
	fail(d, 3)
	if third := s.onlyLetter(); third.Number != first.Number || third.State != admin.Failed || third.RemovedAt != nil || third.Bytes != len(d.Record.Body) || third.Failures != 3 {
		t.Errorf("after a removal the entry is %+v", third)
	}
	copied := *d
	copied.Record = arrived(t, order{"x", 0}).Record // another id
	fail(&copied, 4)
	elsewhere, err := s.Retries("elsewhere", 0)
	if err == nil {
		err = elsewhere.Add(t.Context(), worker.Move{Delivery: d, Attempt: attempt(5), DeadLetters: "lost"})
	}
	try(t, "Add of another transport", err)
	if found, err := letters.Failed(t.Context(), admin.FailedQuery{}); err != nil || len(found) != 3 {
		t.Errorf("Failed = %+v, %v, want three", found, err)
	}
}

func replayIsIdempotent[TX any](t *testing.T, s *fixture[TX]) {
	q, letters := s.retries(0), s.deadLetters()
	sent := arrived(t, order{"x", 0})
	sent.Failures = 4
	sent.Record.MarkHandled("stock") // the replay must not run that handler again
	try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: sent, Attempt: attempt(1), DeadLetters: "lost"}))
	m := s.onlyLetter()
	replay := func(want int) {
		t.Helper()
		if n, err := letters.RetryFailed(t.Context(), m.Number, m.Number+1); err != nil || n != want {
			t.Errorf("RetryFailed = %d, %v, want %d", n, err, want)
		}
	}
	add(t, q, order{"x", 1})
	replay(1)
	replay(0)
	if got := s.onlyLetter(); got.State != admin.Retrying || got.Number != m.Number || got.Failures != 5 {
		t.Errorf("while it is replayed: %+v", got)
	}
	if n, err := letters.RemoveFailed(t.Context(), m.Number); err != nil || n != 0 {
		t.Errorf("RemoveFailed of a message in the retry queue = %d, %v, want 0", n, err)
	}
	ds := receive(t, q, many)
	wantOrders(t, "behind the waiting ones", ds, order{"x", 1}, order{"x", 0})
	wantSame(t, "the replay", sent.Record, ds[1].Record)
	if ds[1].Failures != 0 || ds[1].Redelivered {
		t.Errorf("it comes with %d failures, redelivered %v, want a message like new", ds[1].Failures, ds[1].Redelivered)
	}
	replay(0)
	try(t, "Ack", q.Ack(t.Context(), ds...))
	wantOrders(t, "beside these", glance(t, q, many))
	replay(0)
	// The transport may deliver a message again that has become a dead letter.
	try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: sent, Attempt: attempt(2), DeadLetters: "lost"}))
	try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: sent, Attempt: attempt(3)}))
	m = s.onlyLetter()
	replay(1)
	wantOrders(t, "once", receive(t, q, many), order{"x", 0})
	wantOrders(t, "beside it", glance(t, q, many))
}

func failingReplaysLeaveOneEntry[TX any](t *testing.T, s *fixture[TX]) {
	q, letters := s.retries(0), s.deadLetters()
	d := arrived(t, order{"x", 0})
	try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: d, Attempt: attempt(0), DeadLetters: "lost"}))
	first, ns := s.onlyLetter(), []int{0}
	fail := func(to string) {
		ns = append(ns, len(ns))
		try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: receive(t, q, 1)[0], Attempt: attempt(len(ns) - 1), DeadLetters: to}))
	}
	for replay := range 100 {
		if n, err := letters.RetryFailed(t.Context(), first.Number); err != nil || n != 1 {
			t.Fatalf("RetryFailed = %d, %v", n, err)
		}
		if replay%10 == 0 {
			fail("") // then comes a retry
		}
		fail("lost")
	}
	last := s.onlyLetter()
	if last.Number != first.Number || last.State != admin.Failed || last.Failures != len(ns) || !last.FirstFailedAt.Equal(*first.FirstFailedAt) {
		t.Errorf("the entry was %+v and is %+v, want %d failures", first, last, len(ns))
	}
	s.wantAttempts("in the end", d.Record.ID, ns...)
}

// strange are records that a database could refuse.
func strange(t testing.TB) []*waybill.Record {
	many := map[string]string{}
	for i := range 300 {
		many[fmt.Sprint("h", i)] = strings.Repeat("v", 100)
	}
	all := "\x00\xff\xc3("
	recs := []*waybill.Record{
		{Name: "order.placed", Key: "a", Headers: map[string]string{"nul": "a\x00b", "bytes": "\xff\xfe", "n\x00\xff": all, "good": "ü"}},
		{Name: "order.placed", Key: "b", Headers: many},
		{Name: "", Key: "c", Problem: errors.New("no name " + all)},
		{Name: strings.Repeat("ä", 200), Key: strings.Repeat("k", 300)},
		{Name: all, Key: all, ContentType: all, DispatchedAt: time.Date(300_000, 1, 1, 0, 0, 0, 0, time.UTC)},
		{Name: "order.placed", Key: "", Body: []byte(all), DispatchedAt: time.Time{}.AddDate(-1, 0, 0)},
	}
	for i, rec := range recs {
		if rec.Body == nil && i > 0 {
			rec.Body = bytes.Repeat([]byte{byte(i), 0, 0xff}, 1<<10)
		}
		if rec.Problem == nil {
			rec.ID = newID(t)
		}
	}
	return recs
}

func noMessageIsImpossibleToKeep[TX any](t *testing.T, s *fixture[TX]) {
	q, recs := s.retries(0), strange(t)
	failure := attempt(1)
	failure.At, failure.Worker, failure.Stack = time.Time{}, "\x00\xff", strings.Repeat("ä\x00\xff", 1<<20)
	failure.Failure.Error, failure.Type = strings.Repeat("refused \x00\xff", 1<<15), strings.Repeat("*T\x00", 1<<12)
	failure.Handler, failure.Fingerprint = strings.Repeat("h", 1<<10), strings.Repeat("f\xff", 1<<10)
	for _, rec := range recs {
		d := &waybill.Delivery{Record: rec, Tag: "another receiver's"}
		if err := q.Add(t.Context(), worker.Move{Delivery: d, Attempt: failure}); err != nil {
			t.Fatalf("Add of %q: %v", rec.Name, err)
		}
		if found, err := q.Contains(t.Context(), d); err != nil || found[0] != (!rec.ID.IsZero() || rec.Key != "") {
			t.Errorf("Contains of %q = %v, %v", rec.Name, found, err)
		}
	}
	solved := false
	take := func(what string) (ds []*waybill.Delivery) {
		t.Helper()
		for len(ds) < len(recs) {
			ds = append(ds, receive(t, q, many)...)
		}
		for _, d := range ds {
			i := slices.IndexFunc(recs, func(rec *waybill.Record) bool { return rec.Key == d.Record.Key })
			if i < 0 {
				t.Fatalf("%s: a message with key %q", what, d.Record.Key)
			}
			want, got := recs[i], d.Record
			if got.Name != want.Name || !bytes.Equal(got.Body, want.Body) || len(got.Headers) != len(want.Headers) || got.Headers["good"] != want.Headers["good"] || got.ID.IsZero() || !want.ID.IsZero() && got.ID != want.ID {
				t.Errorf("%s: message %d came as %s %q with %d headers and %d bytes", what, i, got.ID, got.Name, len(got.Headers), len(got.Body))
			}
			if (got.Problem != nil) != (want.Problem != nil && !solved) || got.Problem != nil && !strings.HasPrefix(got.Problem.Error(), "no name") {
				t.Errorf("%s: message %d has the problem %v, want %v", what, i, got.Problem, want.Problem)
			}
		}
		return ds
	}
	for _, d := range take("at first") {
		try(t, "Retry", q.Retry(t.Context(), d, 0))
	}
	for _, d := range take("after a retry") {
		try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: d, Attempt: failure, DeadLetters: "lost"}))
	}
	if letters, ok := s.Store.(DeadLetters); ok {
		replayAll(t, letters, len(recs))
		solved = true // an operator says so
		try(t, "Ack", q.Ack(t.Context(), take("replayed")...))
	}
}

// replayAll replays n dead letters of three failures each.
func replayAll(t testing.TB, letters DeadLetters, n int) {
	t.Helper()
	found, err := letters.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(found) != n {
		t.Fatalf("%d dead letters, %v, want %d", len(found), err, n)
	}
	for _, m := range found {
		if !strings.HasPrefix(m.LastError, "refused ") || len(m.LastError) > 16<<10 || m.Failures != 3 {
			t.Errorf("dead letter %d has %d failures, the last an error of %d bytes", m.Number, m.Failures, len(m.LastError))
		}
		if n, err := letters.RetryFailed(t.Context(), m.Number); err != nil || n != 1 {
			t.Errorf("RetryFailed = %d, %v", n, err)
		}
	}
}
