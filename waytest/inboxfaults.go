package waytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
)

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

// Two handlers lock the same two rows, each in its own order: the one that the server
// rolls back runs again, and its message has not failed.
func handlersThatDeadlockRunAgain[TX any](t *testing.T, s *fixture[TX]) {
	store, h := s.inbox(), s.handling()
	rows := []inbox.Entry{{Handler: "row", DedupKey: newID(t).String(), MessageID: newID(t)}, {Handler: "row", DedupKey: newID(t).String(), MessageID: newID(t)}}
	var locked sync.WaitGroup // by the first attempt of each
	locked.Add(len(rows))
	h.handle("h", func(ctx context.Context, tx TX, m order) error {
		if _, err := store.InsertTx(ctx, tx, rows[m.Seq]); err != nil {
			return err
		}
		if h.attempts.Load() <= int64(len(rows)) {
			locked.Done()
			within(moment, locked.Wait) // SQLite has one writer at a time
		}
		_, err := store.InsertTx(ctx, tx, rows[1-m.Seq])
		return err
	})
	for i, err := range h.together(arrival(t, order{"a", 0}), arrival(t, order{"b", 1})) {
		if err != nil {
			t.Errorf("handler %d: %v", i, err)
		}
	}
	h.wantEffects("in the end", "h 0", "h 1")
}

// within waits for wait to return, at most for d.
func within(d time.Duration, wait func()) {
	done := make(chan struct{})
	go func() { wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(d):
	}
}

// Duplicates wait for the transaction that handles their message. When it fails, InnoDB
// gives all of them the lock of the row that is gone, and ends all but one for a deadlock.
func duplicatesBehindAFailureSucceed[TX any](t *testing.T, s *fixture[TX]) {
	var effects []string
	for n := range 5 {
		h := s.handling()
		h.attempts.Store(int64(100 * n))
		var failed atomic.Bool
		h.handle("h", func(context.Context, TX, order) error {
			if failed.Swap(true) {
				return nil
			}
			time.Sleep(moment) // the others come to the row of the inbox
			return errChangedMind
		})
		rec := arrival(t, order{"k", n})
		failures := 0
		for _, err := range h.together(rec, rec, rec, rec) {
			if errors.Is(err, errChangedMind) {
				failures++
			} else if err != nil {
				t.Errorf("round %d: %v", n, err)
			}
		}
		if failures != 1 {
			t.Errorf("round %d: %d deliveries failed, want 1", n, failures)
		}
		effects = append(effects, fmt.Sprint("h ", n))
		h.wantEffects(fmt.Sprint("round ", n), effects...)
	}
}
