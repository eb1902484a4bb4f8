package waytest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

func movedMessageWaitsForItsRetry[TX any](t *testing.T, s *fixture[TX]) {
	q := s.retries(0)
	add(t, q, order{"x", 0}, order{"x", 1})
	ds := receive(t, q, many)
	wantOrders(t, "first", ds, order{"x", 0}, order{"x", 1})
	const delay = time.Second
	failedAt := time.Now()
	ds[0].Record.MarkHandled("mail")
	try(t, "Move of nothing", q.Move(t.Context()))
	try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: ds[0], Attempt: attempt(1), Delay: delay}, worker.Move{Delivery: ds[1]}))
	wantLost(t, "Move again", q.Move(t.Context(), worker.Move{Delivery: ds[0], Attempt: attempt(2)}))
	if got := glance(t, q, many); len(got) > 0 && time.Since(failedAt) < delay {
		t.Fatalf("%v came while the head waits", ordersOf(got))
	}
	var again []*waybill.Delivery
	for len(again) < 2 {
		again = append(again, receive(t, q, many)...)
	}
	if early := time.Until(failedAt.Add(delay)); early > 0 {
		t.Errorf("it came %v too early", early)
	}
	wantOrders(t, "when it is due", again, order{"x", 0}, order{"x", 1})
	if again[0].Failures != 1 || again[1].Failures != 0 || again[0].Record.Headers[waybill.HeaderHandledBy] != "mail" || again[0].Record.Headers["tenant"] != "acme" {
		t.Errorf("failures %d and %d with headers %v, want 1 and 0, handled by mail", again[0].Failures, again[1].Failures, again[0].Record.Headers)
	}
	try(t, "Release", q.Release(t.Context(), again[1]))
	try(t, "Retry", q.Retry(t.Context(), again[0], 0))
	if got := receive(t, q, 1); got[0].Failures != 2 {
		t.Errorf("%d failures after Retry, want 2", got[0].Failures)
	}
}

// A message that met an outage waits without a failure, by Add and by Move.
func postponedMessageIsNotCounted[TX any](t *testing.T, s *fixture[TX]) {
	q := s.retries(0)
	const delay = time.Second
	began := time.Now()
	try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: arrived(t, order{"x", 0}), Delay: delay}, worker.Move{Delivery: arrived(t, order{"x", 1})}))
	for _, what := range []string{"added", "moved"} {
		if got := glance(t, q, many); len(got) > 0 && time.Since(began) < delay {
			t.Fatalf("%s: %v came while the head waits", what, ordersOf(got))
		}
		var ds []*waybill.Delivery
		for len(ds) < 2 {
			ds = append(ds, receive(t, q, many)...)
		}
		wantOrders(t, what, ds, order{"x", 0}, order{"x", 1})
		if ds[0].Failures != 0 || ds[0].Redelivered || time.Since(began) < delay {
			t.Errorf("%s: %d failures, redelivered %t, after %v", what, ds[0].Failures, ds[0].Redelivered, time.Since(began))
		}
		began = time.Now()
		try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: ds[0], Delay: delay}, worker.Move{Delivery: ds[1]}))
	}
}

func parkedKeyWaitsForItsRelease[TX any](t *testing.T, s *fixture[TX]) {
	q := s.retries(0)
	operator, ok := s.Store.(interface {
		ReleaseRetries(ctx context.Context, transport, key string) (int, error)
	})
	if !ok {
		t.Skip("the store has no ReleaseRetries")
	}
	try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: arrived(t, order{"y", 0}), Attempt: attempt(1), Parked: true}, worker.Move{Delivery: arrived(t, order{"y", 1})}))
	add(t, q, order{"x", 0}, order{"x", 1})
	ds := receive(t, q, many)
	wantOrders(t, "beside the parked key", ds, order{"x", 0}, order{"x", 1})
	try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: ds[0], Attempt: attempt(2), Parked: true}, worker.Move{Delivery: ds[1]}))
	wantOrders(t, "parked", glance(t, q, many))
	if db, ok := s.Store.(admin.Retries); ok {
		wantParked(t, db)
	}
	release := func(transport, key string, want int) {
		t.Helper()
		if n, err := operator.ReleaseRetries(t.Context(), transport, key); err != nil || n != want {
			t.Errorf("ReleaseRetries(%s, %s) = %d, %v, want %d", transport, key, n, err, want)
		}
	}
	release("t", "X", 0)
	release("T", "x", 0)
	release("t", "x", 1)
	release("t", "x", 0)
	ds = receive(t, q, many)
	wantOrders(t, "released", ds, order{"x", 0}, order{"x", 1})
	if ds[0].Redelivered {
		t.Error("a release from parking counts as a redelivery")
	}
	release("t", "", 1)
	wantOrders(t, "the other key", receive(t, q, many), order{"y", 0}, order{"y", 1})
}

// wantParked compares an operator's view with a key x of two messages, whose head is parked.
func wantParked(t testing.TB, db admin.Retries) {
	t.Helper()
	found, err := db.Retries(t.Context(), admin.RetriesQuery{Key: "x"})
	if err != nil || len(found) != 2 || !found[0].Parked || found[0].DueAt != nil || found[0].Failures != 1 || found[0].LastError != "refused 2" || found[1].Parked || found[1].LastError != "" {
		t.Errorf("Retries = %+v, %v", found, err)
	}
}

func deadLetterLetsItsKeyGoOn[TX any](t *testing.T, s *fixture[TX]) {
	s.outbox(outbox.Config{To: "t"})
	q := s.retries(0)
	sent := add(t, q, order{"x", 0}, order{"x", 1})
	ds := receive(t, q, 1)
	ds[0].Record.MarkHandled("stock")
	try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: ds[0], Attempt: attempt(1), DeadLetters: "lost"}))
	wantOrders(t, "the rest of the key", receive(t, q, many), order{"x", 1})
	if found, err := q.Contains(t.Context(), arrived(t, order{"x", 2}), arrived(t, order{"y", 0})); err != nil || !found[0] || found[1] {
		t.Errorf("Contains = %v, %v", found, err)
	}
	if _, ok := s.Store.(DeadLetters); ok {
		s.wantLetterOf(sent[0].Record)
	}
	if db, ok := s.Store.(admin.Database); ok {
		if stats, err := db.OutboxStats(t.Context()); err != nil || slices.ContainsFunc(stats, func(of admin.OutboxStats) bool { return of.Failed > 0 }) {
			t.Errorf("OutboxStats = %+v, %v: no relay has skipped a message", stats, err)
		}
	}
}

// wantLetterOf compares the only dead letter with a message handled by stock, whose
// attempt(1) has failed.
func (s *fixture[TX]) wantLetterOf(sent *waybill.Record) {
	s.t.Helper()
	m := s.onlyLetter()
	want := admin.FailedMessage{
		Number: m.Number, State: admin.Failed, Source: admin.FromWorker, Transport: "t", FailureTransport: "lost", Name: "order.placed", Key: "x",
		ID: sent.ID, Failures: 1, LastError: "refused 1", Handler: "mail", ErrorType: "*smtp.Error", Fingerprint: "f1", Bytes: len(sent.Body),
		CreatedAt: m.CreatedAt, FailedAt: m.FailedAt, FirstFailedAt: m.FirstFailedAt,
	}
	if m != want || m.FirstFailedAt == nil || !m.FirstFailedAt.Equal(attempt(1).At) {
		s.t.Errorf("the dead letter is %+v, want %+v", m, want)
	}
	content, err := s.deadLetters().FailedContent(s.t.Context(), m.Number)
	var headers map[string]string
	if err == nil {
		err = waybill.JSON{}.Decode(content.Headers, &headers)
	}
	if err != nil || string(content.Body) != string(sent.Body) || headers["tenant"] != "acme" || headers[waybill.HeaderHandledBy] != "stock" {
		s.t.Errorf("content %s with headers %v, %v", content.Body, headers, err)
	}
}

// onlyLetter returns the only dead letter that is not removed.
func (s *fixture[TX]) onlyLetter() admin.FailedMessage {
	s.t.Helper()
	found, err := s.deadLetters().Failed(s.t.Context(), admin.FailedQuery{})
	if err != nil || len(found) != 1 {
		s.t.Fatalf("Failed = %+v, %v, want one", found, err)
	}
	return found[0]
}

func lateHolderMovesNothing[TX any](t *testing.T, s *fixture[TX]) {
	a, b := s.retries(400*time.Millisecond), s.retries(0)
	add(t, b, order{"x", 0})
	late := receive(t, a, 1)[0]
	taken := receive(t, b, 1)[0]
	add(t, b, order{"y", 0})
	good := receive(t, a, 1)[0]
	for what, m := range map[string]worker.Move{
		"Move to a retry":          {Delivery: late, Attempt: attempt(1), Delay: time.Hour},
		"Move to parking":          {Delivery: late, Attempt: attempt(2), Parked: true},
		"Move to the dead letters": {Delivery: late, Attempt: attempt(3), DeadLetters: "lost"},
	} {
		wantLost(t, what, a.Move(t.Context(), m))
	}
	_, err := a.Begin(t.Context(), late)
	wantLost(t, "Begin", err)
	wantLost(t, "Retry", a.Retry(t.Context(), late, 0))
	wantLost(t, "Move by another receiver", a.Move(t.Context(), worker.Move{Delivery: taken, DeadLetters: "lost"}))
	wantLost(t, "Move of one that is lost and one that is not", a.Move(t.Context(),
		worker.Move{Delivery: late, Attempt: attempt(4), DeadLetters: "lost"}, worker.Move{Delivery: good, Attempt: attempt(5)}))
	if got := receive(t, b, 1)[0]; bodyOf(got.Record) != (order{"y", 0}) || got.Failures != 1 {
		t.Errorf("%+v with %d failures, want y0 with 1", got.Record, got.Failures)
	}
	if err := a.Move(t.Context(), worker.Move{Delivery: arrived(t, order{"z", 0})}); err == nil {
		t.Error("Move of another transport's delivery = nil")
	}
	if letters, ok := s.Store.(DeadLetters); ok {
		if found, err := letters.Failed(t.Context(), admin.FailedQuery{}); err != nil || len(found) > 0 {
			t.Errorf("dead letters %+v, %v, want none", found, err)
		}
	}
	if operator, ok := s.Store.(admin.Retries); ok {
		if found, err := operator.FailedAttempts(t.Context(), "t", taken.Record.ID); err != nil || len(found) > 0 {
			t.Errorf("attempts %+v, %v, want none", found, err)
		}
	}
	try(t, "Ack of the holder", b.Ack(t.Context(), taken))
}

// Begin counts the earlier leases under which the handlers began, if these leases ended
// unsettled.
func crashesAreStartsWithoutAnEnd[TX any](t *testing.T, s *fixture[TX]) {
	dying, q := s.retries(1500*time.Millisecond), s.retries(0)
	add(t, q, order{"x", 0})
	begin := func(of worker.RetryQueue, d *waybill.Delivery, want int) {
		t.Helper()
		if n, err := of.Begin(t.Context(), d); err != nil || n != want {
			t.Errorf("Begin = %d, %v, want %d", n, err, want)
		}
	}
	receive(t, dying, 1) // and die before the handlers begin
	d := receive(t, q, 1)[0]
	begin(q, d, 0)
	begin(q, d, 0) // the same start, after an answer that was lost
	try(t, "Release", q.Release(t.Context(), d))
	for crashes := range 3 {
		begin(dying, receive(t, dying, 1)[0], crashes)
	}
	d = receive(t, q, 1)[0]
	begin(q, d, 3)
	try(t, "Release", q.Release(t.Context(), d))
	d = receive(t, q, 1)[0]
	begin(q, d, 3) // the release was an end
	if operator, ok := s.Store.(admin.Retries); ok {
		if found, err := operator.Retries(t.Context(), admin.RetriesQuery{}); err != nil || len(found) != 1 || found[0].Crashes != 3 || !found[0].InFlight {
			t.Errorf("Retries = %+v, %v", found, err)
		}
	}
	try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: d, Attempt: attempt(1)}))
	begin(q, receive(t, q, 1)[0], 0)
}

func onlyALostLeaseIsRedelivered[TX any](t *testing.T, s *fixture[TX]) {
	check := func(what string, q, dying waybill.Receiver) {
		take := func(from waybill.Receiver, after string, want bool) *waybill.Delivery {
			t.Helper()
			d := receive(t, from, 1)[0]
			if d.Redelivered != want {
				t.Errorf("%s: after %s Redelivered = %v, want %v", what, after, d.Redelivered, want)
			}
			return d
		}
		try(t, "Retry", q.Retry(t.Context(), take(q, "its arrival", false), 0))
		try(t, "Release", q.Release(t.Context(), take(q, "a retry", false)))
		take(dying, "a release", false)
		try(t, "Release", q.Release(t.Context(), take(q, "a lost lease", true)))
		try(t, "Ack", q.Ack(t.Context(), take(q, "a release", false)))
	}
	retries := s.retries(0)
	add(t, retries, order{"x", 0})
	check("retry queue", retries, s.retries(1500*time.Millisecond))
	if s.Queue != nil {
		q := s.queue("q", 0)
		s.local(order{"x", 0})
		check("queue", q, s.queue("q", 1500*time.Millisecond))
	}
}
