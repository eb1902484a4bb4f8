package waytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/worker"
)

// DeadLetters are the methods of an admin.Database that the suite of the retry queues
// uses. A store may have them alone.
type DeadLetters interface {
	Failed(ctx context.Context, q admin.FailedQuery) ([]admin.FailedMessage, error)
	FailedContent(ctx context.Context, number int64) (admin.FailedContent, error)
	RetryFailed(ctx context.Context, numbers ...int64) (int, error)
	RemoveFailed(ctx context.Context, numbers ...int64) (int, error)
}

// Retries is the suite of the retry queues in a database, and of the dead letters of
// workers.
func Retries[TX any](t *testing.T, open func(t *testing.T) Harness[TX]) {
	RetryQueue(t, open)
	runCases(t, open, []testCase[TX]{
		{"AttemptsAreCompleteAndInOrder", attemptsAreCompleteAndInOrder[TX]},
		{"SuccessEndsTheRecordOfFailures", successEndsTheRecordOfFailures[TX]},
		{"MessageThatFailsAgainKeepsItsEntry", messageThatFailsAgainKeepsItsEntry[TX]},
		{"ReplayIsIdempotent", replayIsIdempotent[TX]},
		{"FailingReplaysLeaveOneEntry", failingReplaysLeaveOneEntry[TX]},
		{"KillBetweenStatementsLosesAndDoublesNothing", killBetweenStatementsLosesAndDoublesNothing[TX]},
	})
}

// RetryQueue is the part of Retries for a store whose dead letters are no DeadLetters.
func RetryQueue[TX any](t *testing.T, open func(t *testing.T) Harness[TX]) {
	runCases(t, open, []testCase[TX]{
		{"AddedMessagesComeOnceInOrder", addedMessagesComeOnceInOrder[TX]},
		{"AddersOfTheSameMessagesDoNotCollide", addersOfTheSameMessagesDoNotCollide[TX]},
		{"ContainsFindsIDsAndKeysBytewise", containsFindsIDsAndKeysBytewise[TX]},
		{"WaitingHeadHoldsItsKeyBack", waitingHeadHoldsItsKeyBack[TX]},
		{"MovedMessageWaitsForItsRetry", movedMessageWaitsForItsRetry[TX]},
		{"PostponedMessageIsNotCounted", postponedMessageIsNotCounted[TX]},
		{"ParkedKeyWaitsForItsRelease", parkedKeyWaitsForItsRelease[TX]},
		{"SkippedParkedHeadLetsItsKeyGoOn", skippedParkedHeadLetsItsKeyGoOn[TX]},
		{"HeadsAreSkippedBesideAConsumer", headsAreSkippedBesideAConsumer[TX]},
		{"DeadLetterLetsItsKeyGoOn", deadLetterLetsItsKeyGoOn[TX]},
		{"LateHolderMovesNothing", lateHolderMovesNothing[TX]},
		{"CrashesAreStartsWithoutAnEnd", crashesAreStartsWithoutAnEnd[TX]},
		{"OnlyALostLeaseIsRedelivered", onlyALostLeaseIsRedelivered[TX]},
		{"NoMessageIsImpossibleToKeep", noMessageIsImpossibleToKeep[TX]},
		{"FiltersSelectDeadLetters", filtersSelectDeadLetters[TX]},
		{"GroupsAreOfOneFingerprint", groupsAreOfOneFingerprint[TX]},
		{"GroupsHaveTheirHours", groupsHaveTheirHours[TX]},
		{"EditedBodyIsReplayed", editedBodyIsReplayed[TX]},
		{"EmptyBodyIsEdited", emptyBodyIsEdited[TX]},
		{"NewMessageNamesItsCause", newMessageNamesItsCause[TX]},
		{"ReplayThatFailsIsSeen", replayThatFailsIsSeen[TX]},
		{"StatsCountWhatFailed", statsCountWhatFailed[TX]},
		{"ChangesAreAudited", changesAreAudited[TX]},
		{"MessageGivenTwiceIsRetriedOnce", messageGivenTwiceIsRetriedOnce[TX]},
	})
}

// retries returns a new receiver of the retry queue of transport "t", or skips the case.
func (s *fixture[TX]) retries(lease time.Duration) worker.RetryQueue {
	s.t.Helper()
	if s.Retries == nil {
		s.t.Skip("the database has no retry queues")
	}
	q, err := s.Retries("t", lease)
	if err != nil {
		s.t.Fatal(err)
	}
	if lease != 0 && q.LeaseTime() != lease {
		s.t.Skip("the lease of a retry queue cannot be chosen")
	}
	return q
}

// deadLetters returns the dead letters of the database, or skips the case.
func (s *fixture[TX]) deadLetters() DeadLetters {
	s.t.Helper()
	db, ok := s.Store.(DeadLetters)
	if !ok {
		s.t.Skip("the store has no DeadLetters")
	}
	return db
}

// retryAdmin returns the operator's side of the retry queues, or skips the case.
func (s *fixture[TX]) retryAdmin() admin.Retries {
	s.t.Helper()
	db, ok := s.Store.(admin.Retries)
	if !ok {
		s.t.Skip("the store is no admin.Retries")
	}
	return db
}

// many is a maximum of Receive with room for several messages of a key.
const many = 100

// arrived is a delivery of another receiver.
func arrived(t testing.TB, o order) *waybill.Delivery {
	t.Helper()
	body, err := waybill.JSON{}.Encode(o)
	if err != nil {
		t.Fatal(err)
	}
	return &waybill.Delivery{Tag: "another receiver's", Record: &waybill.Record{
		ID: newID(t), Name: o.MessageName(), Key: o.Key, ContentType: "application/json", Body: body, DispatchedAt: time.Now().UTC(),
		Headers: map[string]string{"tenant": "acme"},
	}}
}

// add adds orders that wait behind others, and returns them.
func add(t testing.TB, q worker.RetryQueue, orders ...order) []*waybill.Delivery {
	t.Helper()
	ds, moves := make([]*waybill.Delivery, len(orders)), make([]worker.Move, len(orders))
	for i, o := range orders {
		ds[i] = arrived(t, o)
		moves[i].Delivery = ds[i]
	}
	if err := q.Add(t.Context(), moves...); err != nil {
		t.Fatal(err)
	}
	return ds
}

// attempt is the record of a failed attempt, of another time each.
func attempt(n int) *worker.Attempt {
	return &worker.Attempt{At: time.Date(2026, 11, 5, 12, 0, n, 123_456_000, time.UTC), Worker: fmt.Sprint("host/", n), Failure: worker.Failure{
		Handler: "mail", Type: "*smtp.Error", Error: fmt.Sprint("refused ", n), Stack: fmt.Sprint("goroutine ", n), Fingerprint: fmt.Sprint("f", n),
	}}
}

func addedMessagesComeOnceInOrder[TX any](t *testing.T, s *fixture[TX]) {
	q := s.retries(0)
	try(t, "Add of nothing", q.Add(t.Context()))
	sent := add(t, q, order{"x", 0}, order{"y", 0}, order{"x", 1}, order{"", 0}, order{"", 1})
	late := arrived(t, order{"x", 2})
	again := worker.Move{Delivery: sent[2], Attempt: attempt(1), Delay: time.Hour, Parked: true}
	try(t, "Add of one again, and another", q.Add(t.Context(), again, worker.Move{Delivery: late}, worker.Move{Delivery: late}))
	lost := worker.Move{Delivery: sent[0], Attempt: attempt(1), DeadLetters: "lost"}
	try(t, "Add of one again to the dead letters", q.Add(t.Context(), lost))
	got := receive(t, q, many)
	want := append(sent, late)
	if len(got) != len(want) {
		t.Fatalf("%v came, want %v", ordersOf(got), ordersOf(want))
	}
	other, err := s.Retries("elsewhere", 0)
	if err != nil {
		t.Fatal(err)
	}
	wantOrders(t, "of another transport", glance(t, other, many))
	keyed := func(ds []*waybill.Delivery) (rest []*waybill.Delivery) {
		for _, d := range ds {
			if d.Record.Key != "" {
				rest = append(rest, d)
			}
		}
		return rest
	}
	for i, d := range keyed(got) {
		wantSame(t, fmt.Sprint("message ", i), keyed(want)[i].Record, d.Record)
		if d.Failures != 0 {
			t.Errorf("message %d: %d failures, want 0: it was added before", i, d.Failures)
		}
	}
	wantOrders(t, "beside these", glance(t, q, many))
	try(t, "Ack", q.Ack(t.Context(), got...))
	if db, ok := s.Store.(DeadLetters); ok {
		if found, err := db.Failed(t.Context(), admin.FailedQuery{}); err != nil || len(found) > 0 {
			t.Errorf("dead letters %+v, %v: the queue had the message", found, err)
		}
	}
}

// A message may come to several workers at once, each of which adds it.
func addersOfTheSameMessagesDoNotCollide[TX any](t *testing.T, s *fixture[TX]) {
	q := s.retries(0)
	s.deadLetters() // or skip
	const rounds, adders, messages = 10, 4, 6
	for range rounds {
		var moves []worker.Move
		for i := range messages {
			m := worker.Move{Delivery: arrived(t, order{fmt.Sprint(i % 3), i}), Attempt: attempt(i)}
			if i%2 == 0 {
				m.DeadLetters = "lost"
			}
			moves = append(moves, m)
		}
		var wg sync.WaitGroup
		for i := range adders {
			mine := slices.Clone(moves)
			if i%2 == 0 {
				slices.Reverse(mine)
			}
			wg.Go(func() { try(t, "Add", q.Add(t.Context(), mine...)) })
		}
		wg.Wait()
	}
	seen := map[waybill.MessageID]bool{}
	for len(seen) < rounds*messages/2 {
		ds := receive(t, q, 100)
		for _, d := range ds {
			if seen[d.Record.ID] || d.Failures != 1 {
				t.Errorf("%v came with %d failures, twice: %v", bodyOf(d.Record), d.Failures, seen[d.Record.ID])
			}
			seen[d.Record.ID] = true
		}
		try(t, "Ack", q.Ack(t.Context(), ds...))
	}
	wantOrders(t, "beside these", glance(t, q, 10))
	if found, err := s.deadLetters().Failed(t.Context(), admin.FailedQuery{}); err != nil || len(found) != rounds*messages/2 {
		t.Errorf("%d dead letters, %v, want %d", len(found), err, rounds*messages/2)
	}
}

func containsFindsIDsAndKeysBytewise[TX any](t *testing.T, s *fixture[TX]) {
	q := s.retries(0)
	sent := add(t, q, order{"k", 0}, order{"ä", 0}, order{"", 0}, order{"a\x00b", 0})
	ask := func(of worker.RetryQueue, want []bool, ds ...*waybill.Delivery) {
		t.Helper()
		got, err := of.Contains(t.Context(), ds...)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("Contains (%v) of %v (-want +got):\n%s", err, ordersOf(ds), diff)
		}
	}
	ask(q, []bool{true, true, true, true}, sent...)
	var others []*waybill.Delivery
	for _, key := range []string{"k", "K", "ä", "a\u0308", "", "k ", "a\x00b", "a", "z"} {
		others = append(others, arrived(t, order{key, 1}))
	}
	ask(q, []bool{true, false, true, false, false, false, true, false, false}, others...)
	other, err := s.Retries("T", 0)
	if err != nil {
		t.Fatal(err)
	}
	ask(other, []bool{false, false}, sent[0], others[0])
	if got, err := q.Contains(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("Contains of nothing = %v, %v", got, err)
	}
	var ds []*waybill.Delivery
	for len(ds) < len(sent) {
		ds = append(ds, receive(t, q, many)...)
	}
	ask(q, []bool{true}, others[0]) // while it is delivered
	try(t, "Ack", q.Ack(t.Context(), ds...))
	ask(q, []bool{false, false}, sent[0], others[0])
}

func waitingHeadHoldsItsKeyBack[TX any](t *testing.T, s *fixture[TX]) {
	a, b := s.retries(0), s.retries(0)
	const delay = time.Second
	failedAt := time.Now()
	try(t, "Add", a.Add(t.Context(),
		worker.Move{Delivery: arrived(t, order{"x", 0}), Attempt: attempt(1), Delay: delay},
		worker.Move{Delivery: arrived(t, order{"x", 1})}, worker.Move{Delivery: arrived(t, order{"y", 0})}))
	wantOrders(t, "another key", receive(t, a, many), order{"y", 0})
	add(t, b, order{"x", 2})
	if got := glance(t, b, many); len(got) > 0 && time.Since(failedAt) < delay {
		t.Fatalf("%v came while the head waits", ordersOf(got))
	}
	var got []*waybill.Delivery
	for len(got) < 3 {
		got = append(got, receive(t, b, many)...)
	}
	if early := time.Until(failedAt.Add(delay)); early > 0 {
		t.Errorf("they came %v too early", early)
	}
	wantOrders(t, "when it is due", got, order{"x", 0}, order{"x", 1}, order{"x", 2})
	if got[0].Failures != 1 || got[1].Failures != 0 {
		t.Errorf("failures %d and %d, want 1 and 0", got[0].Failures, got[1].Failures)
	}
}

// wantLost reports an error that is not that of a lost lease.
func wantLost(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("%s = %v, want ErrLeaseLost", what, err)
	}
}
