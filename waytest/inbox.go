package waytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
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
		{"LookupFindsWhatWasHandled", lookupFindsWhatWasHandled[TX]},
		{"PruningForgetsWhatIsOld", pruningForgetsWhatIsOld[TX]},
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
	inbox.Handle(h.bus, h.s.inbox(), name, h.effect(name, fn), inbox.Option{Observer: h})
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
	return h.bus.HandleRecord(context.Background(), &copied, "events", 0)
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

func idempotencyKeyMakesMessagesDuplicates[TX any](t *testing.T, s *fixture[TX]) {
	h := s.handling()
	h.handle("h", fine[TX])
	first := arrival(t, order{"k", 5})
	for i, key := range []string{"payment-1", "payment-1", "payment-2", "", "", first.ID.String()} {
		rec := arrival(t, order{"k", i})
		if i == 4 {
			rec = first
			rec.Body = []byte(`{"key":"k","seq":4}`)
		}
		if key != "" {
			rec.Headers = map[string]string{waybill.HeaderIdempotencyKey: key}
		}
		if err := h.receive(rec); err != nil {
			t.Error(err)
		}
	}
	// The last one's key looks like the id of another message, and is none.
	h.wantEffects("in the end", "h 0", "h 2", "h 3", "h 4", "h 5")
}

func entriesDifferBytewise[TX any](t *testing.T, s *fixture[TX]) {
	store := s.inbox()
	handlers := []string{"h", "H", "h ", "ħ", "orders/billing", strings.Repeat("h", 190)}
	for round, want := range []bool{true, false} {
		err := store.InTx(t.Context(), func(ctx context.Context, tx TX) error {
			for _, handler := range handlers {
				for _, key := range unlike {
					if handler != "h" && len(key) > 2 || len("k:"+key) > 255 {
						continue
					}
					fresh, err := store.InsertTx(ctx, tx, inbox.Entry{Handler: handler, DedupKey: "k:" + key, MessageID: waybill.MessageID{1}})
					if err != nil {
						return fmt.Errorf("handler %q, key %q: %w", handler, key, err)
					}
					if fresh != want {
						t.Errorf("round %d: Remember of handler %q, key %q = %v, want %v", round, handler, key, fresh, want)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// The longest key that a message can carry.
	long := inbox.Entry{Handler: "h", DedupKey: "k:" + strings.Repeat("ä", 127) + "z", MessageID: waybill.MessageID{1}}
	for _, want := range []bool{true, false} {
		err := store.InTx(t.Context(), func(ctx context.Context, tx TX) error {
			fresh, err := store.InsertTx(ctx, tx, long)
			if err == nil && fresh != want {
				t.Errorf("Remember of an idempotency key of 255 bytes = %v, want %v", fresh, want)
			}
			return err
		})
		if err != nil {
			t.Errorf("an idempotency key of 255 bytes: %v", err)
		}
	}
}

// Writes of the handler after the loss must not stay, and the message must be
// handled again.
func handlerThatLosesItsTransactionHasOneEffect[TX any](t *testing.T, s *fixture[TX]) {
	if len(s.Losses) == 0 {
		t.Skip("the database ends no transaction by itself")
	}
	out := s.outbox(outbox.Config{})
	var want []string
	for what, lose := range s.Losses {
		h, ill := s.handling(), true
		n := len(want)
		h.attempts.Store(int64(100 * n))
		h.handle("h", func(ctx context.Context, tx TX, m order) error {
			if ill {
				if err := lose(ctx, tx); err == nil {
					t.Errorf("%s is no error: the case proves nothing", what)
				}
				_ = s.Insert(ctx, tx, "h after 1") // as a handler does that tries again, or ignores it
			}
			_, err := out.Dispatch(ctx, tx, m)
			return err
		})
		rec := arrival(t, order{"k", n})
		if err := h.receive(rec); err == nil {
			t.Errorf("%s: the attempt whose transaction was lost succeeded", what)
		}
		h.wantEffects("after "+what, want...)
		s.wantWaiting("after " + what)
		ill = false
		for range 2 {
			if err := h.receive(rec); err != nil {
				t.Errorf("after %s: %v", what, err)
			}
		}
		want = append(want, fmt.Sprint("h ", n))
		h.wantEffects("after "+what+" and success", want...)
		s.wantWaiting("after "+what+" and success", order{"k", n})
		s.take(outbox.DefaultTransport)
	}
}

func handlerThatEndsItsTransactionDispatchesNothing[TX any](t *testing.T, s *fixture[TX]) {
	if len(s.Ends) == 0 {
		t.Skip("a function cannot end its transaction")
	}
	out := s.outbox(outbox.Config{})
	for what, end := range s.Ends {
		h := s.handling()
		inbox.Handle(h.bus, s.inbox(), "h", func(ctx context.Context, tx TX, m order) error {
			if _, err := out.Dispatch(ctx, tx, m); err != nil {
				return err
			}
			_ = end(ctx, tx)
			return nil
		})
		if err := h.receive(arrival(t, order{"k", 1})); err == nil {
			t.Errorf("%s: the attempt succeeded", what)
		}
		s.wantWaiting("after " + what)
	}
}

func handlerThatIgnoresAnErrorTearsNothingApart[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	h := s.handling()
	if err := s.inOwnTx(func(ctx context.Context, tx TX) error { return s.Insert(ctx, tx, "there 0 0") }); err != nil {
		t.Fatal(err)
	}
	h.handle("h", func(ctx context.Context, tx TX, m order) error {
		if err := s.Insert(ctx, tx, "there 0 0"); err == nil {
			t.Error("the place takes a text twice")
		}
		_, err := out.Dispatch(ctx, tx, m)
		return err
	})
	rec := arrival(t, order{"k", 1})
	var succeeded bool
	for range 3 {
		if err := h.receive(rec); err == nil {
			succeeded = true
		} else if succeeded {
			t.Errorf("a duplicate = %v", err)
		}
	}
	if succeeded {
		h.wantEffects("after success", "there 0", "h 1")
		s.wantWaiting("after success", order{"k", 1})
	} else {
		h.wantEffects("after failures", "there 0")
		s.wantWaiting("after failures")
	}
}

func handlerWhoseContextEndsLeavesNothing[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	h := s.handling()
	var cancel context.CancelFunc
	h.handle("h", func(ctx context.Context, tx TX, m order) error {
		_, err := out.Dispatch(ctx, tx, m)
		if cancel != nil {
			cancel()
		}
		return err
	})
	rec := arrival(t, order{"k", 1})
	var ctx context.Context
	ctx, cancel = context.WithCancel(t.Context())
	if err := h.bus.HandleRecord(ctx, rec, "events", 0); !errors.Is(err, context.Canceled) {
		t.Errorf("HandleRecord = %v, want context.Canceled", err)
	}
	h.wantEffects("after the context ended")
	s.wantWaiting("after the context ended")
	cancel = nil
	if err := h.receive(rec); err != nil {
		t.Error(err)
	}
	h.wantEffects("in the end", "h 1")
	s.wantWaiting("in the end", order{"k", 1})
}

func handlerInATransactionCannotOpenAnother[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	h := s.handling()
	h.handle("h", func(ctx context.Context, _ TX, m order) error { return send(ctx, out, m) })
	if err := h.receive(arrival(t, order{"k", 1})); !errors.Is(err, waybill.ErrNestedTransaction) {
		t.Errorf("InTx in an inbox handler = %v, want ErrNestedTransaction", err)
	}
	h.wantEffects("afterwards")
	s.wantWaiting("afterwards")
}

// Concurrent handlers dispatch to the same keys, each in a random order: none is
// chosen as the victim of a deadlock.
func handlersThatDispatchDoNotDeadlock[TX any](t *testing.T, s *fixture[TX]) {
	const workers = 8
	messages := 60
	if raced || testing.Short() {
		messages = 12
	}
	out := s.outbox(outbox.Config{})
	keys := append(otherBuckets(4), sameBucket(1)...)
	h := s.handling()
	h.handle("h", func(ctx context.Context, tx TX, m order) error {
		for _, k := range rand.Perm(len(keys)) {
			if _, err := out.Dispatch(ctx, tx, order{keys[k], m.Seq}); err != nil {
				return err
			}
		}
		return nil
	})
	var all sync.WaitGroup
	var effects []string
	for i := range workers {
		for n := range messages {
			effects = append(effects, fmt.Sprint("h ", i*messages+n))
		}
		all.Go(func() {
			for n := range messages {
				rec := arrival(t, order{"", i*messages + n})
				for range 1 + n%2 { // each second one comes twice
					if err := h.receive(rec); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	var got []order
	for _, row := range s.take(outbox.DefaultTransport) {
		got = append(got, bodyOf(row.Record))
	}
	wantEach(t, "outbox", got, keys, workers, messages)
	h.wantEffects("in the end", effects...)
}

func lookupFindsWhatWasHandled[TX any](t *testing.T, s *fixture[TX]) {
	operator := s.operator()
	h := s.handling()
	h.handle("a", fine[TX])
	h.handle("b", fine[TX])
	plain, keyed, other := arrival(t, order{"k", 1}), arrival(t, order{"k", 2}), arrival(t, order{"k", 3})
	keyed.Headers = map[string]string{waybill.HeaderIdempotencyKey: "payment 42"}
	for _, rec := range []*waybill.Record{plain, keyed} {
		if err := h.receive(rec); err != nil {
			t.Fatal(err)
		}
	}
	for what, want := range map[string]struct {
		id  waybill.MessageID
		key string
	}{
		plain.ID.String(): {plain.ID, plain.ID.String()}, keyed.ID.String(): {keyed.ID, "k:payment 42"}, "payment 42": {keyed.ID, "k:payment 42"},
	} {
		found, err := operator.InboxLookup(t.Context(), what)
		if err != nil || len(found) != 2 {
			t.Errorf("InboxLookup(%s) = %+v, %v, want two entries", what, found, err)
			continue
		}
		handlers := map[string]bool{}
		for _, e := range found {
			handlers[e.Handler] = true
			if age := time.Since(e.ProcessedAt); e.MessageID != want.id || e.DedupKey != want.key || age < -time.Minute || age > time.Minute || e.ProcessedAt.Location() != time.UTC {
				t.Errorf("InboxLookup(%s) has %+v, want message %s, key %s, just now in UTC", what, e, want.id, want.key)
			}
		}
		if diff := cmp.Diff(map[string]bool{"a": true, "b": true}, handlers); diff != "" {
			t.Errorf("InboxLookup(%s): handlers (-want +got):\n%s", what, diff)
		}
	}
	for _, what := range []string{other.ID.String(), "Payment 42", "payment 42 ", "payment", "k:payment 42", "", "nobody's \x00"} {
		if found, err := operator.InboxLookup(t.Context(), what); !errors.Is(err, waybill.ErrNotFound) {
			t.Errorf("InboxLookup(%q) = %+v, %v, want ErrNotFound", what, found, err)
		}
	}
	stats, err := operator.InboxStats(t.Context())
	if err != nil || len(stats) != 2 || stats[0].Handler != "a" || stats[0].Entries != 2 || stats[1].Handler != "b" || stats[1].Entries != 2 || stats[0].Oldest.After(stats[0].Newest) {
		t.Errorf("InboxStats = %+v, %v, want two entries for each of a and b", stats, err)
	}
}

func pruningForgetsWhatIsOld[TX any](t *testing.T, s *fixture[TX]) {
	var operator admin.Database = s.operator()
	store := s.inbox()
	const entries = 30
	remember := func(from int, want bool) {
		t.Helper()
		err := store.InTx(t.Context(), func(ctx context.Context, tx TX) error {
			for i := from; i < from+entries; i++ {
				fresh, err := store.InsertTx(ctx, tx, inbox.Entry{Handler: "h", DedupKey: fmt.Sprint("k:", i), MessageID: newID(t)})
				if err != nil {
					return err
				}
				if fresh != want {
					t.Errorf("Remember of entry %d = %v, want %v", i, fresh, want)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	remember(0, true)
	const resolution = 1500 * time.Millisecond // of the column, at most
	time.Sleep(2 * resolution)
	began := time.Now()
	age := func() time.Duration { return resolution + time.Since(began) } // between both halves, also on a busy machine
	remember(entries, true)
	if n, err := operator.InboxOlder(t.Context(), age()); err != nil || n != entries {
		t.Errorf("InboxOlder = %d, %v, want %d", n, err, entries)
	}
	if n, err := operator.InboxPrune(t.Context(), time.Hour, nil); err != nil || n != 0 {
		t.Errorf("InboxPrune of what is an hour old = %d, %v, want none", n, err)
	}
	reported := 0
	if n, err := operator.InboxPrune(t.Context(), age(), func(removed int) { reported += removed }); err != nil || n != entries || reported != n {
		t.Errorf("InboxPrune = %d, %v, and %d reported, want %d", n, err, reported, entries)
	}
	remember(0, true)        // forgotten
	remember(entries, false) // not yet
}

func logRemembersEffectsOutsideTheDatabase[TX any](t *testing.T, s *fixture[TX]) {
	log, ok := s.Store.(inbox.Log)
	if !ok {
		t.Skip("the store is no inbox.Log")
	}
	e := inbox.Entry{Handler: "h", DedupKey: "k:1", MessageID: waybill.MessageID{1}}
	for _, want := range []bool{false, true} {
		seen, err := log.Contains(t.Context(), e)
		if err != nil || seen != want {
			t.Errorf("Contains = %v, %v, want %v", seen, err, want)
		}
		for range 2 {
			if err := log.Insert(t.Context(), e); err != nil {
				t.Error(err)
			}
		}
	}
	for _, other := range []inbox.Entry{{Handler: "H", DedupKey: "k:1"}, {Handler: "h", DedupKey: "K:1"}, {Handler: "h", DedupKey: "k:1 "}} {
		if seen, err := log.Contains(t.Context(), other); err != nil || seen {
			t.Errorf("Contains(%+v) = %v, %v, want false", other, seen, err)
		}
	}
}
