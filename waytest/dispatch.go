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
	runCases(t, open, slices.Concat(dispatchCases[TX](), uniqueCases[TX](), edgeCases[TX](), orderCases[TX](), relayCases[TX](), parkedCases[TX](), failureCases[TX](), historyCases[TX]()))
}

// Dispatch is the half of Outbox that depends on the type of the transactions:
// for a second library on the tables that Outbox has tested.
func Dispatch[TX any](t *testing.T, open func(t *testing.T) Harness[TX]) {
	runCases(t, open, slices.Concat(dispatchCases[TX](), uniqueCases[TX](), edgeCases[TX](), orderCases[TX]()))
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
		{"UnitInsideOneOfAnotherDatabaseIsRefused", unitInsideOneOfAnotherDatabaseIsRefused[TX]},
		{"SeparateUnitCommitsByItself", separateUnitCommitsByItself[TX]},
		{"NilTransactionIsRefused", nilTransactionIsRefused[TX]},
		{"DispatchAfterTheUnitIsRefused", dispatchAfterTheUnitIsRefused[TX]},
		{"DispatchWhileTheUnitEndsIsKeptOrRefused", dispatchWhileTheUnitEnds[TX]},
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
		wantOrders(t, "in the queue after a commit", receive(t, s.queue("local", 0), 20), order{"k", 0}, order{"k", 2})
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
			m := nesting[TX]{s: s, rt: rt, out: out, next: &next}
			inTx := func(fn func(ctx context.Context, tx TX) error) error { return s.Store.InTx(context.Background(), fn) }
			if rapid.IntRange(0, 3).Draw(rt, "own") == 0 {
				inTx = s.inOwnTx
			}
			err := inTx(func(ctx context.Context, tx TX) error { return m.act(ctx, tx, 0) })
			switch {
			case err == nil:
				want = append(want, m.kept...)
				for _, o := range m.kept {
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

// nesting is a transaction of random savepoints, of which some are rolled back.
type nesting[TX any] struct {
	s    *fixture[TX]
	rt   *rapid.T
	out  *outbox.Outbox[TX]
	next *int    // number of the last message
	kept []order // dispatched, and not rolled back so far
}

func (m *nesting[TX]) act(ctx context.Context, tx TX, depth int) error {
	for range rapid.IntRange(0, 4).Draw(m.rt, "actions") {
		if depth < 3 && rapid.IntRange(0, 3).Draw(m.rt, "nest") == 0 {
			before := len(m.kept)
			err := m.out.Savepoint(ctx, tx, func(ctx context.Context) error { return m.act(ctx, tx, depth+1) })
			if errors.Is(err, errChangedMind) {
				m.kept = m.kept[:before]
			} else if err != nil {
				return err
			}
			continue
		}
		*m.next++
		o := order{rapid.SampledFrom([]string{"", "a", "b"}).Draw(m.rt, "key"), *m.next}
		if err := m.s.Insert(ctx, tx, fmt.Sprint(o.Seq)); err != nil {
			return err
		}
		if _, err := m.out.Dispatch(ctx, tx, o); err != nil {
			return err
		}
		m.kept = append(m.kept, o)
	}
	if rapid.IntRange(0, 3).Draw(m.rt, "fail") == 0 {
		return errChangedMind
	}
	return nil
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
