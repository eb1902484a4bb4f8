package waytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// Outbox is the suite of an outbox: its dispatchers, its relays and its failures.
func Outbox[TX any](t *testing.T, open func(t *testing.T) Harness[TX]) {
	runCases(t, open, slices.Concat(dispatchCases[TX](), edgeCases[TX](), orderCases[TX](), relayCases[TX](), parkedCases[TX](), failureCases[TX]()))
}

// Dispatch is the half of Outbox that depends on the type of the transactions:
// for a second library on the tables that Outbox has tested.
func Dispatch[TX any](t *testing.T, open func(t *testing.T) Harness[TX]) {
	runCases(t, open, slices.Concat(dispatchCases[TX](), edgeCases[TX](), orderCases[TX]()))
}

func dispatchCases[TX any]() []testCase[TX] {
	return []testCase[TX]{
		{"RollbackLeavesNothing", rollbackLeavesNothing[TX]},
		{"SavepointRollbackRemovesExactlyItsMessages", savepointRollbackRemovesExactlyItsMessages[TX]},
		{"PanicInASavepointUndoesItAndGoesOn", panicInASavepointUndoesItAndGoesOn[TX]},
		{"OutboxHoldsExactlyWhatCommitted", outboxHoldsExactlyWhatCommitted[TX]},
		{"InterleavedKeysOfOneTransactionKeepTheirOrder", interleavedKeysOfOneTransactionKeepTheirOrder[TX]},
		{"DispatchInTheCallersOwnTransactionSharesItsFate", dispatchInTheCallersOwnTransactionSharesItsFate[TX]},
		{"NestedUnitOfWorkIsRefused", nestedUnitOfWorkIsRefused[TX]},
		{"DispatchAfterTheUnitIsRefused", dispatchAfterTheUnitIsRefused[TX]},
		{"UnitThatWasEndedInsideDispatchesNothing", unitThatWasEndedInsideDispatchesNothing[TX]},
		{"UnitThatLosesItsTransactionDoesNothing", unitThatLosesItsTransactionDoesNothing[TX]},
		{"IgnoredErrorOfAStatementTearsNothingApart", ignoredErrorOfAStatementTearsNothingApart[TX]},
		{"CancelledContextRollsBack", cancelledContextRollsBack[TX]},
		{"ContextThatEndsInTheMiddleLeavesAllOrNothing", contextThatEndsInTheMiddleLeavesAllOrNothing[TX]},
		{"CommitWhoseResultIsUnknownNamesItsMessages", commitWhoseResultIsUnknownNamesItsMessages[TX]},
		{"CommitWakesTheRelayOfItsProcess", commitWakesTheRelayOfItsProcess[TX]},
		{"QueueOfTheSameDatabaseNeedsNoRelay", queueOfTheSameDatabaseNeedsNoRelay[TX]},
	}
}

func rollbackLeavesNothing[TX any](t *testing.T, s *fixture[TX]) {
	cfg := outbox.Config{To: outbox.DefaultTransport}
	if s.Queue != nil {
		cfg = outbox.Config{Queues: map[string]string{"local": "local"}, Routes: waybill.Routes{"*": {outbox.DefaultTransport, "local"}}}
	}
	out := s.outbox(cfg)
	attempt := func(text string, end func() error) (err error) {
		defer func() {
			if v := recover(); v != nil {
				err = errChangedMind
			}
		}()
		return out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
			if err := s.Insert(ctx, tx.SQL(), text); err != nil {
				return err
			}
			for i, delay := range []time.Duration{0, time.Hour, 0} {
				if _, err := tx.Dispatch(ctx, order{"k", i}, waybill.Delay(delay)); err != nil {
					return err
				}
			}
			return end()
		})
	}
	for what, end := range map[string]func() error{
		"an error": func() error { return errChangedMind },
		"a panic":  func() error { panic("boom") },
	} {
		if err := attempt("rolled back", end); !errors.Is(err, errChangedMind) {
			t.Errorf("after %s: InTx = %v", what, err)
		}
		s.wantBacklog("after "+what, outbox.Backlog{})
		s.wantWaiting("after " + what)
		s.wantTexts()
		if s.Queue != nil {
			wantOrders(t, "in the queue after "+what, glance(t, s.queue("local", 0), 10))
		}
	}
	if err := attempt("committed", func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	s.wantBacklog("after a commit", outbox.Backlog{Pending: 2, Delayed: 1})
	s.wantWaiting("after a commit", order{"k", 0}, order{"k", 2})
	s.wantTexts("committed")
	if s.Queue != nil {
		wantOrders(t, "in the queue after a commit", receive(t, s.queue("local", 0), 10), order{"k", 0}, order{"k", 2})
	}
}

func savepointRollbackRemovesExactlyItsMessages[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	if err := s.inOwnTx(func(ctx context.Context, tx TX) error { return s.Insert(ctx, tx, "n0") }); err != nil {
		t.Fatal(err)
	}
	err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
		do := func(n int) error {
			if err := s.Insert(ctx, tx.SQL(), fmt.Sprint("n", n)); err != nil {
				return err
			}
			_, err := tx.Dispatch(ctx, order{"k", n})
			return err
		}
		if err := do(1); err != nil {
			return err
		}
		err := tx.Savepoint(ctx, func(ctx context.Context) error {
			if err := do(2); err != nil {
				return err
			}
			if err := tx.Savepoint(ctx, func(context.Context) error { return do(3) }); err != nil {
				return err
			}
			return errChangedMind
		})
		if !errors.Is(err, errChangedMind) {
			return fmt.Errorf("savepoint = %w", err)
		}
		// A failed statement is undone with its savepoint, and the unit continues.
		err = tx.Savepoint(ctx, func(ctx context.Context) error {
			if err := do(6); err != nil {
				t.Error(err)
			}
			return s.Insert(ctx, tx.SQL(), "n0")
		})
		if err == nil {
			return errors.New("savepoint of a failed statement = nil")
		}
		if err := tx.Savepoint(ctx, func(context.Context) error { return do(4) }); err != nil {
			return err
		}
		return do(5)
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wantWaiting("in the outbox", order{"k", 1}, order{"k", 4}, order{"k", 5})
	s.wantTexts("n0", "n1", "n4", "n5")
}

func panicInASavepointUndoesItAndGoesOn[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
		func() {
			defer func() {
				if v := recover(); v != "boom" {
					t.Errorf("recovered %v, want the panic of the function", v)
				}
			}()
			_ = tx.Savepoint(ctx, func(ctx context.Context) error {
				if _, err := tx.Dispatch(ctx, order{"a", 1}); err != nil {
					t.Error(err)
				}
				if err := s.Insert(ctx, tx.SQL(), "undone"); err != nil {
					t.Error(err)
				}
				panic("boom")
			})
		}()
		_, err := tx.Dispatch(ctx, order{"a", 2})
		return errors.Join(err, s.Insert(ctx, tx.SQL(), "done"))
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wantWaiting("in the outbox", order{"a", 2})
	s.wantTexts("done")
}

// The law of atomicity: the outbox holds exactly the messages of the transactions
// and savepoints that committed, in their order, and the application's table
// exactly their rows.
func outboxHoldsExactlyWhatCommitted[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	var texts []string // of all checks
	next := 0
	rapid.Check(t, often(25, func(rt *rapid.T) {
		if _, err := visit(s.Store, outbox.DefaultTransport, true); err != nil {
			rt.Fatal(err)
		}
		var want []order
		for range rapid.IntRange(1, 4).Draw(rt, "transactions") {
			var kept []order
			var nest func(ctx context.Context, tx TX, depth int) error
			nest = func(ctx context.Context, tx TX, depth int) error {
				for range rapid.IntRange(0, 4).Draw(rt, "actions") {
					if depth < 3 && rapid.IntRange(0, 3).Draw(rt, "nest") == 0 {
						before := len(kept)
						err := out.Savepoint(ctx, tx, func(ctx context.Context) error { return nest(ctx, tx, depth+1) })
						if errors.Is(err, errChangedMind) {
							kept = kept[:before]
						} else if err != nil {
							return err
						}
						continue
					}
					next++
					o := order{rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "key"), next}
					if err := s.Insert(ctx, tx, fmt.Sprint(o.Seq)); err != nil {
						return err
					}
					if _, err := out.Dispatch(ctx, tx, o); err != nil {
						return err
					}
					kept = append(kept, o)
				}
				if rapid.IntRange(0, 3).Draw(rt, "fail") == 0 {
					return errChangedMind
				}
				return nil
			}
			inTx := func(fn func(ctx context.Context, tx TX) error) error { return s.Store.InTx(context.Background(), fn) }
			if rapid.IntRange(0, 3).Draw(rt, "own") == 0 {
				inTx = s.inOwnTx
			}
			err := inTx(func(ctx context.Context, tx TX) error { return nest(ctx, tx, 0) })
			switch {
			case err == nil:
				want = append(want, kept...)
				for _, o := range kept {
					texts = append(texts, fmt.Sprint(o.Seq))
				}
			case !errors.Is(err, errChangedMind):
				rt.Fatal(err)
			}
		}
		rows, err := visit(s.Store, outbox.DefaultTransport, false)
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(group(want), byKey(rows)); diff != "" {
			rt.Fatalf("outbox (-want +got):\n%s", diff)
		}
		got, err := s.Texts(context.Background())
		slices.Sort(got)
		slices.Sort(texts)
		if err != nil || !slices.Equal(got, texts) {
			rt.Fatalf("the application's table does not match its messages: %v, %v, want %v", err, got, texts)
		}
	}))
}

// inOwnTx runs fn in a transaction of the caller's own.
func (s *fixture[TX]) inOwnTx(fn func(ctx context.Context, tx TX) error) error {
	ctx := context.Background()
	tx, err := s.Begin(ctx)
	if err != nil {
		return err
	}
	if err := fn(ctx, tx); err != nil {
		return errors.Join(err, s.Rollback(ctx, tx))
	}
	return s.Commit(ctx, tx)
}

func interleavedKeysOfOneTransactionKeepTheirOrder[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	keys := append(sameBucket(2), otherBuckets(3)...)
	dispatch := func(from int) func(ctx context.Context, tx TX) error {
		return func(ctx context.Context, tx TX) error {
			for i := from; i < from+50; i++ {
				if _, err := out.Dispatch(ctx, tx, order{keys[i*i%len(keys)], i}); err != nil {
					return err
				}
			}
			return nil
		}
	}
	var want []order
	for i := range 100 {
		want = append(want, order{keys[i*i%len(keys)], i})
	}
	if err := s.Store.InTx(t.Context(), dispatch(0)); err != nil {
		t.Fatal(err)
	}
	if err := s.inOwnTx(dispatch(50)); err != nil {
		t.Fatal(err)
	}
	s.wantWaiting("in the outbox", want...)
	var both []any // several at once
	for _, o := range want {
		both = append(both, o)
	}
	s.take(outbox.DefaultTransport)
	if err := s.inOwnTx(func(ctx context.Context, tx TX) error {
		ids, err := out.DispatchAll(ctx, tx, both...)
		if err == nil && len(ids) != len(both) {
			err = fmt.Errorf("%d ids for %d messages", len(ids), len(both))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s.wantWaiting("dispatched at once", want...)
}

func dispatchInTheCallersOwnTransactionSharesItsFate[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	for _, commit := range []bool{false, true} {
		tx := s.begin()
		err := errors.Join(s.Insert(t.Context(), tx, "own"), out.Savepoint(t.Context(), tx, func(ctx context.Context) error {
			_, err := out.Dispatch(ctx, tx, order{"k", 1})
			return err
		}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.DispatchAll(t.Context(), tx, order{"k", 2}, order{"", 3}, waybill.NewEnvelope(order{"k", 4}, waybill.Delay(time.Hour))); err != nil {
			t.Fatal(err)
		}
		if err := out.Savepoint(t.Context(), tx, func(ctx context.Context) error {
			_, err := out.Dispatch(ctx, tx, order{"k", 9})
			return errors.Join(errChangedMind, err, s.Insert(ctx, tx, "undone"))
		}); !errors.Is(err, errChangedMind) {
			t.Errorf("Savepoint = %v", err)
		}
		s.end(tx, commit)
		if commit {
			s.wantWaiting("committed", order{"k", 1}, order{"k", 2}, order{"", 3})
			s.wantBacklog("committed", outbox.Backlog{Pending: 3, Delayed: 1})
			s.wantTexts("own")
		} else {
			s.wantWaiting("rolled back")
			s.wantBacklog("rolled back", outbox.Backlog{})
			s.wantTexts()
		}
	}
}

func nestedUnitOfWorkIsRefused[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, _ outbox.Tx[TX]) error { return send(ctx, out, order{"k", 1}) })
	if !errors.Is(err, waybill.ErrNestedTransaction) {
		t.Errorf("InTx in InTx = %v, want ErrNestedTransaction", err)
	}
	s.wantWaiting("afterwards")
}

func dispatchAfterTheUnitIsRefused[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	var late outbox.Tx[TX]
	if err := out.InTx(t.Context(), func(_ context.Context, tx outbox.Tx[TX]) error { late = tx; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := late.Dispatch(t.Context(), order{"k", 1}); err == nil {
		t.Error("Dispatch in a unit that is over = nil: the message is lost")
	}
	s.wantWaiting("afterwards")
}

func unitThatWasEndedInsideDispatchesNothing[TX any](t *testing.T, s *fixture[TX]) {
	if len(s.Ends) == 0 {
		t.Skip("a function cannot end its transaction")
	}
	out := s.outbox(outbox.Config{})
	for what, end := range s.Ends {
		for n := range 3 { // one message and several may take different ways
			err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
				for i := range n {
					if _, err := tx.Dispatch(ctx, order{"k", i}); err != nil {
						return err
					}
				}
				_ = end(ctx, tx.SQL())
				return nil
			})
			if err == nil || errors.Is(err, waybill.ErrCommitUnknown) {
				t.Errorf("%s and %d messages: InTx = %v, want an error that says it failed", what, n, err)
			}
			s.wantWaiting(fmt.Sprintf("after %s and %d messages", what, n))
		}
	}
	s.put(out, order{"k", 7}) // the connection is of use
	s.wantWaiting("after all that", order{"k", 7})
}

// Statements after the loss must not commit on their own, and the messages must
// not either.
func unitThatLosesItsTransactionDoesNothing[TX any](t *testing.T, s *fixture[TX]) {
	if len(s.Losses) == 0 {
		t.Skip("the database ends no transaction by itself")
	}
	out := s.outbox(outbox.Config{})
	for what, lose := range s.Losses {
		for n := range 3 {
			err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
				for i := range n {
					if _, err := tx.Dispatch(ctx, order{"k", i}); err != nil {
						return err
					}
				}
				if err := lose(ctx, tx.SQL()); err == nil {
					t.Errorf("%s is no error: the case proves nothing", what)
				}
				_ = s.Insert(ctx, tx.SQL(), "after the loss")
				return nil
			})
			if err == nil || errors.Is(err, waybill.ErrCommitUnknown) {
				t.Errorf("%s and %d messages: InTx = %v, want an error that says it failed", what, n, err)
			}
			s.wantWaiting(fmt.Sprintf("after %s and %d messages", what, n))
			s.wantTexts()
		}
	}
	s.put(out, order{"k", 7})
	s.wantWaiting("after all that", order{"k", 7})
}

// After a failed statement some databases can still commit the transaction and
// some cannot; none may keep a part of it.
func ignoredErrorOfAStatementTearsNothingApart[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	if err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error { return s.Insert(ctx, tx.SQL(), "there") }); err != nil {
		t.Fatal(err)
	}
	texts := []string{"there"}
	for n := range 3 {
		var want []order
		for i := range n {
			want = append(want, order{"k", i})
		}
		text := fmt.Sprint("beside ", n)
		err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
			if err := s.Insert(ctx, tx.SQL(), text); err != nil {
				return err
			}
			for _, o := range want {
				if _, err := tx.Dispatch(ctx, o); err != nil {
					return err
				}
			}
			if err := s.Insert(ctx, tx.SQL(), "there"); err == nil {
				t.Error("the place takes a text twice")
			}
			return nil
		})
		if errors.Is(err, waybill.ErrCommitUnknown) {
			t.Errorf("%d messages: InTx = %v, want a known result", n, err)
		}
		if err == nil {
			texts = append(texts, text)
		} else {
			want = nil
		}
		s.wantWaiting(fmt.Sprintf("%d messages and InTx = %v", n, err), want...)
		s.wantTexts(texts...)
		s.take(outbox.DefaultTransport)
	}
}

func cancelledContextRollsBack[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	for n := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		err := out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[TX]) error {
			for i := range n {
				if _, err := tx.Dispatch(ctx, order{"k", i}); err != nil {
					return err
				}
			}
			err := s.Insert(ctx, tx.SQL(), "cancelled")
			cancel()
			return err
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, waybill.ErrCommitUnknown) {
			t.Errorf("%d messages: InTx = %v, want context.Canceled", n, err)
		}
	}
	s.wantWaiting("afterwards")
	s.wantTexts()
}

// A dispatcher that waits for another one gives up when its context ends; its
// error then says that nothing happened, or that the outcome is unknown.
func contextThatEndsInTheMiddleLeavesAllOrNothing[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	first := s.begin()
	if _, err := out.Dispatch(t.Context(), first, order{"k", 1}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), moment)
	defer cancel()
	done := make(chan error, 1)
	var id waybill.MessageID
	go func() {
		done <- out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[TX]) (err error) {
			if err = s.Insert(ctx, tx.SQL(), "second"); err == nil {
				id, err = tx.Dispatch(ctx, order{"k", 2})
			}
			return err
		})
	}()
	var err error
	select {
	case err = <-done:
	case <-time.After(patience):
		t.Fatal("a dispatcher waits on after its context has ended")
	}
	s.end(first, true)
	want, texts := []order{{"k", 1}, {"k", 2}}, []string{"second"}
	var unknown *waybill.CommitUnknownError
	switch {
	case err == nil: // it did not have to wait
	case errors.As(err, &unknown):
		if diff := cmp.Diff([]waybill.MessageID{id}, unknown.IDs); diff != "" {
			t.Errorf("ids of the unknown commit (-want +got):\n%s", diff)
		}
		s.put(out, order{"k", 3}) // waits for whatever is still under way
		if rows := s.peek(outbox.DefaultTransport); len(rows) == 2 {
			want, texts = []order{{"k", 1}, {"k", 3}}, nil
		} else {
			want = append(want, order{"k", 3})
		}
	case errors.Is(err, context.DeadlineExceeded):
		s.put(out, order{"k", 3})
		want, texts = []order{{"k", 1}, {"k", 3}}, nil
	default:
		t.Errorf("InTx = %v, want that the context has ended", err)
	}
	s.wantWaiting(fmt.Sprintf("after InTx = %v", err), want...)
	s.wantTexts(texts...)
}

func commitWhoseResultIsUnknownNamesItsMessages[TX any](t *testing.T, s *fixture[TX]) {
	if s.LostAnswer == nil {
		t.Skip("no answer can be lost")
	}
	store, lose := s.LostAnswer(t)
	out := newOutbox(t, store, outbox.Config{Routes: waybill.Routes{"*": {"a", "b"}}})
	// The first time prepares statements, which takes further answers.
	if err := send(t.Context(), out, order{"k", 1}, order{"k", 2}); err != nil {
		t.Fatal(err)
	}
	s.take("a")
	var ids []waybill.MessageID
	err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
		for i := range 2 {
			id, err := tx.Dispatch(ctx, order{"k", 3 + i})
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		lose()
		return nil
	})
	var unknown *waybill.CommitUnknownError
	if !errors.As(err, &unknown) || !errors.Is(err, waybill.ErrCommitUnknown) {
		t.Fatalf("InTx = %v, want ErrCommitUnknown", err)
	}
	if diff := cmp.Diff(ids, unknown.IDs); diff != "" {
		t.Errorf("ids (-want +got):\n%s", diff)
	}
	await(t, "the commit that did happen", func() bool { return names(s.peek("a")) == "k3 k4" })
}

func commitWakesTheRelayOfItsProcess[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	sink := &recorder{}
	s.relaying(s.Store, sink, outbox.RelayConfig{PollMin: time.Hour, PollMax: time.Hour, Workers: 1})
	for n := range 3 {
		s.put(out, order{"", n})
		await(t, "it comes without a poll", func() bool { return len(sink.all()) == n+1 })
	}
}
