package waytest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

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

// A goroutine that the function did not wait for.
func dispatchWhileTheUnitEnds[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	want := 0
	for n := range 20 {
		key, accepted := fmt.Sprint("k", n, "-"), make(chan int)
		err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
			if _, err := tx.Dispatch(ctx, order{key, 0}); err != nil {
				return err
			}
			go func() {
				seq := 1
				for ; ; seq++ {
					if _, err := tx.Dispatch(context.WithoutCancel(ctx), order{key, seq}); err != nil {
						break
					}
				}
				accepted <- seq
			}()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		want += <-accepted
	}
	if got := len(s.take(outbox.DefaultTransport)); got != want {
		t.Errorf("the outbox has %d messages, and %d were accepted", got, want)
	}
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

func commitWakesTheRelayOfItsProcess[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	sink := &recorder{}
	s.relaying(s.Store, sink, outbox.RelayConfig{PollMin: time.Hour, PollMax: time.Hour, Workers: 1})
	for n := range 3 {
		s.put(out, order{"", n})
		await(t, "it comes without a poll", func() bool { return len(sink.all()) == n+1 })
	}
}
