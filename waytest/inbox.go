package waytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
)

// Inbox is the suite of an inbox: the harness's store is an inbox.Store as well.
func Inbox[TX any](t *testing.T, open func(t *testing.T) Harness[TX]) {
	runCases(t, open, []testCase[TX]{
		{"HandlerThatFailsLeavesNothingAndOneThatSucceedsHasOneEffect", handlerThatFailsLeavesNothing[TX]},
		{"HandlersRememberApart", handlersRememberApart[TX]},
		{"MessageHandledTwiceAtOnceHasOneEffect", messageHandledTwiceAtOnceHasOneEffect[TX]},
		{"WhoeverComesSecondWaitsForTheFirst", whoeverComesSecondWaitsForTheFirst[TX]},
		{"IdempotencyKeyMakesMessagesDuplicates", idempotencyKeyMakesMessagesDuplicates[TX]},
		{"EntriesDifferBytewise", entriesDifferBytewise[TX]},
		{"HandlerThatLosesItsTransactionHasOneEffect", handlerThatLosesItsTransactionHasOneEffect[TX]},
		{"HandlerThatEndsItsTransactionDispatchesNothing", handlerThatEndsItsTransactionDispatchesNothing[TX]},
		{"HandlerThatIgnoresAnErrorTearsNothingApart", handlerThatIgnoresAnErrorTearsNothingApart[TX]},
		{"HandlerWhoseContextEndsLeavesNothing", handlerWhoseContextEndsLeavesNothing[TX]},
		{"HandlerInATransactionCannotOpenAnother", handlerInATransactionCannotOpenAnother[TX]},
		{"HandlersThatDispatchDoNotDeadlock", handlersThatDispatchDoNotDeadlock[TX]},
		{"HandlersThatDeadlockRunAgain", handlersThatDeadlockRunAgain[TX]},
		{"DuplicatesBehindAFailureSucceed", duplicatesBehindAFailureSucceed[TX]},
		{"SilentHandlerLosesItsTransaction", silentHandlerLosesItsTransaction[TX]},
		{"SlowHandlerKeepsItsTransaction", slowHandlerKeepsItsTransaction[TX]},
		{"KeyThatFitsNoColumnFailsAlone", keyThatFitsNoColumnFailsAlone[TX]},
		{"LookupFindsWhatWasHandled", lookupFindsWhatWasHandled[TX]},
		{"LatestEntriesAreReadPageByPage", latestEntriesAreReadPageByPage[TX]},
		{"PruningForgetsWhatIsOld", pruningForgetsWhatIsOld[TX]},
		{"PruningKeepsWhatAnApplicationCountsOn", pruningKeepsWhatAnApplicationCountsOn[TX]},
		{"LogRemembersEffectsOutsideTheDatabase", logRemembersEffectsOutsideTheDatabase[TX]},
		{"GroupIsOneTransaction", groupIsOneTransaction[TX]},
		{"GroupMemberThatFailsFailsAlone", groupMemberThatFailsFailsAlone[TX]},
		{"GroupKnowsDuplicates", groupKnowsDuplicates[TX]},
		{"GroupsOfTheSameMessagesHaveOneEffectEach", groupsOfTheSameMessages[TX]},
		{"GroupWhoseTransactionIsLostIsHandledOneByOne", groupWhoseTransactionIsLost[TX]},
		{"GroupMemberThatEndsTheTransactionIsAnError", groupMemberThatEndsTheTransaction[TX]},
		{"GroupWhoseCommitIsUnknownHasOneEffectEach", groupWhoseCommitIsUnknown[TX]},
		{"GroupMemberWhoseContextEndsFailsAlone", groupMemberWhoseContextEnds[TX]},
		{"GroupInsideATransactionIsRefused", groupInsideATransaction[TX]},
		{"GroupsKeepTheOrderOfKeys", groupsKeepTheOrderOfKeys[TX]},
		{"GroupsHaveOneEffectEachUnderAnyFailures", groupsHaveOneEffectEach[TX]},
	})
}

func (s *fixture[TX]) inbox() inbox.Store[TX] {
	s.t.Helper()
	store, ok := s.Store.(inbox.Store[TX])
	if !ok {
		s.t.Fatalf("%T is no inbox.Store", s.Store)
	}
	return store
}

// arrival is a message as it arrives.
func arrival(t testing.TB, o order) *waybill.Record {
	t.Helper()
	body := fmt.Appendf(nil, `{"key":%q,"seq":%d}`, o.Key, o.Seq)
	return &waybill.Record{ID: newID(t), Name: "order.placed", Key: o.Key, ContentType: "application/json", Body: body, DispatchedAt: time.Now().UTC()}
}

// A handling is a bus with handlers that insert their name, the message's number
// and the number of the attempt, so that no effect hides another.
type handling[TX any] struct {
	s          *fixture[TX]
	bus        *waybill.Bus
	attempts   atomic.Int64
	duplicates atomic.Int64
}

func (s *fixture[TX]) handling() *handling[TX] {
	return &handling[TX]{s: s, bus: waybill.NewBus("main")}
}

// handle registers a handler whose function runs after its effect.
func (h *handling[TX]) handle(name string, fn func(ctx context.Context, tx TX, m order) error) {
	inbox.Handle(h.bus, h.s.inbox(), name, h.effect(name, fn))
}

// effect is a handler's effect, and then fn.
func (h *handling[TX]) effect(name string, fn func(ctx context.Context, tx TX, m order) error) func(ctx context.Context, tx TX, m order) error {
	return func(ctx context.Context, tx TX, m order) error {
		if err := h.s.Insert(ctx, tx, fmt.Sprint(name, " ", m.Seq, " ", h.attempts.Add(1))); err != nil {
			return err
		}
		return fn(ctx, tx, m)
	}
}

func (h *handling[TX]) Observe(_ context.Context, e waybill.Event) {
	if e.Kind == waybill.Duplicate {
		h.duplicates.Add(1)
	}
}

func (h *handling[TX]) receive(rec *waybill.Record) error {
	copied := *rec // handlers that are done are noted in it
	return h.bus.HandleRecord(waybill.WithObserver(context.Background(), h), &copied, "events", 0)
}

// wantEffects compares the effects, without the attempts.
func (h *handling[TX]) wantEffects(what string, want ...string) {
	h.s.t.Helper()
	got, err := h.s.Texts(context.Background())
	if err != nil {
		h.s.t.Fatal(err)
	}
	for i, text := range got {
		got[i] = text[:strings.LastIndex(text, " ")]
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		h.s.t.Errorf("%s: effects %q, want %q", what, got, want)
	}
}

func fine[TX any](context.Context, TX, order) error { return nil }

func handlerThatFailsLeavesNothing[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	h := s.handling()
	end := func() error { return nil }
	h.handle("h", func(ctx context.Context, tx TX, m order) error {
		// A dispatched message joins the unit of work.
		if _, err := out.Dispatch(ctx, tx, order{m.Key, m.Seq + 1}); err != nil {
			return err
		}
		return end()
	})
	rec := arrival(t, order{"k", 1})
	for what, failure := range map[string]func() error{
		"an error": func() error { return errChangedMind },
		"a panic":  func() error { panic("boom") },
	} {
		end = failure
		if err := h.receive(rec); err == nil {
			t.Errorf("%s: the attempt = nil", what)
		}
		h.wantEffects("after " + what)
		s.wantWaiting("after " + what)
	}
	end = func() error { return nil }
	for range 3 { // the second delivery and the third are duplicates
		if err := h.receive(rec); err != nil {
			t.Fatal(err)
		}
	}
	h.wantEffects("after success and duplicates", "h 1")
	s.wantWaiting("after success and duplicates", order{"k", 2})
	if n := h.duplicates.Load(); n != 2 {
		t.Errorf("%d duplicates were observed, want 2", n)
	}
}

func handlersRememberApart[TX any](t *testing.T, s *fixture[TX]) {
	h := s.handling()
	ill := true
	h.handle("a", fine[TX])
	h.handle("b", func(context.Context, TX, order) error {
		if ill {
			return errChangedMind
		}
		return nil
	})
	rec := arrival(t, order{"k", 1})
	if err := h.receive(rec); !errors.Is(err, errChangedMind) {
		t.Errorf("HandleRecord = %v, want the error of b", err)
	}
	h.wantEffects("after b failed", "a 1")
	ill = false
	for range 2 {
		if err := h.receive(rec); err != nil {
			t.Error(err)
		}
	}
	if err := h.receive(arrival(t, order{"k", 1})); err != nil { // another message
		t.Error(err)
	}
	h.wantEffects("in the end", "a 1", "b 1", "a 1", "b 1")
}

// The same message is with several workers at once, after a lease that ended,
// say, and in several processes.
func messageHandledTwiceAtOnceHasOneEffect[TX any](t *testing.T, s *fixture[TX]) {
	const messages, workers = 10, 4
	var hs []*handling[TX]
	for _, store := range s.relays(2) {
		there := *s
		there.Store = store
		h := there.handling()
		h.handle("h", func(context.Context, TX, order) error {
			time.Sleep(5 * time.Millisecond)
			return nil
		})
		hs = append(hs, h)
	}
	hs[1].attempts.Store(1000)
	var want []string
	for i := range messages {
		rec := arrival(t, order{"k", i})
		var all sync.WaitGroup
		for j := range workers {
			all.Go(func() {
				if err := hs[j%2].receive(rec); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		want = append(want, fmt.Sprint("h ", i))
	}
	hs[0].wantEffects("in the end", want...)
	if n := hs[0].duplicates.Load() + hs[1].duplicates.Load(); n != messages*(workers-1) {
		t.Errorf("%d duplicates were observed, want %d", n, messages*(workers-1))
	}
}

func whoeverComesSecondWaitsForTheFirst[TX any](t *testing.T, s *fixture[TX]) {
	store := s.inbox()
	for _, commit := range []bool{false, true} {
		e := inbox.Entry{Handler: "h", DedupKey: newID(t).String(), MessageID: newID(t)}
		remembered, proceed := make(chan bool, 1), make(chan struct{})
		first, second := make(chan error, 1), make(chan error, 1)
		go func() {
			first <- store.InTx(context.Background(), func(ctx context.Context, tx TX) error {
				fresh, err := store.InsertTx(ctx, tx, e)
				remembered <- fresh
				if <-proceed; !commit {
					return errors.Join(err, errChangedMind)
				}
				return err
			})
		}()
		if !<-remembered {
			t.Fatal("Remember of something new = false")
		}
		var fresh bool
		go func() {
			second <- store.InTx(context.Background(), func(ctx context.Context, tx TX) (err error) {
				fresh, err = store.InsertTx(ctx, tx, e)
				return err
			})
		}()
		select {
		case err := <-second:
			t.Errorf("the second did not wait: Remember = %v, %v", fresh, err)
			second <- err
		case <-time.After(moment):
		}
		close(proceed)
		if err := <-first; (err == nil) != commit {
			t.Fatal(err)
		}
		if err := <-second; err != nil {
			t.Errorf("the second, after the first ended (commit %v) = %v", commit, err)
		} else if fresh == commit {
			t.Errorf("commit %v: Remember of the second = %v", commit, fresh)
		}
	}
}
