package waytest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill/inbox"
)

// A handler that ignores the end of its context is as silent as a frozen process. With
// and without a group its row goes to another worker, and nothing of it is committed.
func silentHandlerLosesItsTransaction[TX any](t *testing.T, s *fixture[TX]) {
	if s.Impatient == nil {
		t.Skip("silence ends no transaction")
	}
	store, idle := s.Impatient(t)
	silent := store.(inbox.Store[TX])
	for i, insert := range s.inserts(silent) {
		e := inbox.Entry{Handler: "h", DedupKey: newID(t).String(), MessageID: newID(t)}
		inserted, proceed, ended := make(chan error, 1), make(chan struct{}), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now() // before the silence: a slow moment makes it longer, never shorter
		go func() {
			ended <- silent.InTx(ctx, func(ctx context.Context, tx TX) error {
				return insert(ctx, tx, e, func() error {
					inserted <- s.Insert(ctx, tx, fmt.Sprint("silent ", i))
					<-proceed
					if err := s.Insert(context.WithoutCancel(ctx), tx, fmt.Sprint("late ", i)); err == nil {
						t.Errorf("%d: the silent transaction takes a statement after another has its row", i)
					}
					return nil
				})
			})
		}()
		if err := <-inserted; err != nil {
			t.Fatal(err)
		}
		cancel()
		succeeding, giveUp := context.WithTimeout(t.Context(), idle+patience)
		err := s.inbox().InTx(succeeding, func(ctx context.Context, tx TX) error {
			fresh, err := s.inbox().InsertTx(ctx, tx, e)
			if err == nil && !fresh {
				t.Errorf("%d: the successor takes the message of the silent handler for handled", i)
			}
			return err
		})
		giveUp()
		if took := time.Since(start); err != nil || took < idle/2 {
			t.Errorf("%d: the successor's transaction = %v after %v, want success after %v", i, err, took, idle)
		}
		close(proceed)
		if err := <-ended; err == nil {
			t.Errorf("%d: the silent handler has committed", i)
		}
	}
	s.wantTexts()
}

// A handler that waits for something else than its database keeps its transaction, and
// runs once, however long it takes.
func slowHandlerKeepsItsTransaction[TX any](t *testing.T, s *fixture[TX]) {
	if s.Impatient == nil {
		t.Skip("silence ends no transaction")
	}
	store, idle := s.Impatient(t)
	slow := store.(inbox.Store[TX])
	var want []string
	for i, insert := range s.inserts(slow) {
		e := inbox.Entry{Handler: "h", DedupKey: newID(t).String(), MessageID: newID(t)}
		inserted, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- slow.InTx(t.Context(), func(ctx context.Context, tx TX) error {
				return insert(ctx, tx, e, func() error {
					close(inserted)
					time.Sleep(3 * idle)
					return s.Insert(ctx, tx, fmt.Sprint("slow ", i))
				})
			})
		}()
		<-inserted
		err := s.inbox().InTx(t.Context(), func(ctx context.Context, tx TX) error {
			fresh, err := s.inbox().InsertTx(ctx, tx, e)
			if fresh {
				t.Errorf("%d: the message of the slow handler went to another", i)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Errorf("%d: the slow handler's transaction = %v", i, err)
		}
		want = append(want, fmt.Sprint("slow ", i))
	}
	s.wantTexts(want...)
}

// inserts are the two ways of inserting an entry and then running fn.
func (s *fixture[TX]) inserts(store inbox.Store[TX]) []func(ctx context.Context, tx TX, e inbox.Entry, fn func() error) error {
	return []func(ctx context.Context, tx TX, e inbox.Entry, fn func() error) error{
		func(ctx context.Context, tx TX, e inbox.Entry, fn func() error) error {
			if fresh, err := store.InsertTx(ctx, tx, e); err != nil || !fresh {
				return fmt.Errorf("InsertTx = %v, %w", fresh, err)
			}
			return fn()
		},
		func(ctx context.Context, tx TX, e inbox.Entry, fn func() error) error {
			fresh, failed, lost := store.RunInSavepoint(ctx, tx, e, func(context.Context) error { return fn() })
			if !fresh || failed != nil || lost != nil {
				return fmt.Errorf("RunInSavepoint = %v, %v, %v", fresh, failed, lost)
			}
			return nil
		},
	}
}
