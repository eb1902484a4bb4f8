package waytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
)

func uniqueCases[TX any]() []testCase[TX] {
	return []testCase[TX]{
		{"UniqueKeySendsOneMessage", uniqueKeySendsOneMessage[TX]},
		{"UniqueKeyOfWhatIsUndoneIsFree", uniqueKeyOfWhatIsUndoneIsFree[TX]},
		{"UniqueKeyOfAnEndedUnitIsFree", uniqueKeyOfAnEndedUnitIsFree[TX]},
		{"DispatchersOfAUniqueKeyWaitForEachOther", dispatchersOfAUniqueKeyWait[TX]},
		{"DispatchersAtOnceSendOneMessageForEachUniqueKey", dispatchersAtOnceSendOneMessage[TX]},
		{"UniqueKeyInTheCallersOwnTransaction", uniqueKeyInTheCallersOwnTransaction[TX]},
		{"UniqueKeysArePrunedAfterTheirTime", uniqueKeysArePruned[TX]},
	}
}

// once is a unique key that lasts.
func once(key string) waybill.Unique { return waybill.Unique{Key: key, For: time.Hour} }

// briefly is a unique key whose time is over when the next statement runs.
func briefly(key string) waybill.Unique { return waybill.Unique{Key: key, For: time.Microsecond} }

// dispatchOne dispatches o in a unit of work.
func dispatchOne[TX any](t testing.TB, out *outbox.Outbox[TX], o any, stamps ...waybill.Stamp) (id waybill.MessageID) {
	t.Helper()
	err := out.InTx(context.Background(), func(ctx context.Context, tx outbox.Tx[TX]) (err error) {
		id, err = tx.Dispatch(ctx, o, stamps...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func uniqueKeySendsOneMessage[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{To: outbox.DefaultTransport, Transports: []string{"second"}})
	first := dispatchOne(t, out, order{"k", 1}, once("a"))
	for i, stamps := range [][]waybill.Stamp{{once("a")}, {briefly("a")}, {once("a"), newID(t)}, {once("a"), waybill.Delay(time.Hour)}, {once("a"), waybill.TransportNames{outbox.DefaultTransport, "second"}}} {
		if id := dispatchOne(t, out, order{"k", 10 + i}, stamps...); id != first {
			t.Errorf("dispatch %d of the key returns %s, want %s of the first", i, id, first)
		}
	}
	if id := dispatchOne(t, out, order{"k", 20}, once("a"), first); id != first { // a handler that runs again, with a derived id
		t.Errorf("dispatch under the first id returns %s, want it", id)
	}
	dispatchOne(t, out, order{"k", 2}, once("A")) // keys differ bytewise
	dispatchOne(t, out, order{"k", 3}, briefly("b"))
	dispatchOne(t, out, order{"k", 4}, once("b"))
	if id := dispatchOne(t, out, waybill.RawMessage{Name: "x", Key: "other", Body: []byte("{}")}, once("a")); id == first {
		t.Error("a message of another name is suppressed")
	}
	err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
		one, err := tx.Dispatch(ctx, order{"k", 5}, once("c"))
		if err != nil {
			return err
		}
		ids, err := out.DispatchAll(ctx, tx.SQL(), waybill.NewEnvelope(order{"k", 6}, once("d")), waybill.NewEnvelope(order{"k", 30}, once("c")),
			order{"k", 7}, waybill.NewEnvelope(order{"k", 31}, once("d")), waybill.NewEnvelope(order{"k", 32}, once("a")))
		if err == nil && (ids[1] != one || ids[3] != ids[0] || ids[4] != first || ids[2] == ids[0]) {
			t.Errorf("DispatchAll = %v, want the second %s, the fourth as the first, the fifth %s", ids, one, first)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for what, u := range map[string]waybill.Unique{"no key": {For: time.Hour}, "no time": {Key: "n"}, "a NUL": {Key: "\x00", For: 1e9}, "bad text": {Key: "\xff", For: 1e9}, "a long key": {Key: fmt.Sprintf("%256s", ""), For: 1e9}} {
		err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
			_, err := tx.Dispatch(ctx, order{"k", 33}, u)
			return err
		})
		if err == nil {
			t.Errorf("unique key with %s: no error", what)
		}
	}
	dispatchOne(t, out, waybill.RawMessage{Name: "y", Key: "other", Body: []byte("{}")}, waybill.Unique{Key: fmt.Sprintf("%255s", ""), For: time.Hour})
	s.wantBacklog("after all", outbox.Backlog{Pending: 9})
	backlog, err := s.Store.Backlog(t.Context(), "second")
	if err != nil || backlog != (outbox.Backlog{}) {
		t.Errorf("backlog of the second transport = %+v, %v, want nothing", backlog, err)
	}
}

func uniqueKeyOfWhatIsUndoneIsFree[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
		if _, err := tx.Dispatch(ctx, order{"k", 0}, once("a")); err != nil {
			return err
		}
		return errChangedMind
	})
	if !errors.Is(err, errChangedMind) {
		t.Fatal(err)
	}
	err = out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
		undone := tx.Savepoint(ctx, func(ctx context.Context) error {
			_, err := tx.Dispatch(ctx, order{"k", 0}, once("b"))
			return errors.Join(err, errChangedMind)
		})
		if !errors.Is(undone, errChangedMind) {
			return undone
		}
		_, err := tx.Dispatch(ctx, order{"k", 1}, once("b"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	dispatchOne(t, out, order{"k", 2}, once("a"))
	dispatchOne(t, out, order{"k", 0}, once("b"))
	s.wantWaiting("after a rollback and one to a savepoint", order{"k", 1}, order{"k", 2})
}

// A function that ends its transaction by itself may commit what it has done so far: the
// lock of the key, and not its message.
func uniqueKeyOfAnEndedUnitIsFree[TX any](t *testing.T, s *fixture[TX]) {
	out, n := s.outbox(outbox.Config{}), 0
	var want []order
	for what, end := range s.Ends {
		n++
		for try := range 2 {
			err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
				if _, err := tx.Dispatch(ctx, order{"k", n}, once(what)); err != nil {
					return err
				}
				if try == 0 {
					_ = end(ctx, tx.SQL())
				}
				return nil
			})
			if (err == nil) != (try == 1) {
				t.Fatalf("%s, attempt %d: %v", what, try+1, err)
			}
		}
		want = append(want, order{"k", n})
	}
	s.wantWaiting("after the second attempts", want...)
}

func dispatchersOfAUniqueKeyWait[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	for seq, commit := range []bool{false, true} {
		key := fmt.Sprint("key", seq)
		var ids [2]waybill.MessageID
		dispatched, proceed := make(chan error, 1), make(chan struct{})
		ended := [2]chan error{make(chan error, 1), make(chan error, 1)}
		go func() {
			ended[0] <- out.InTx(context.Background(), func(ctx context.Context, tx outbox.Tx[TX]) (err error) {
				ids[0], err = tx.Dispatch(ctx, order{"k", 2 * seq}, once(key))
				dispatched <- err
				if <-proceed; !commit {
					return errors.Join(err, errChangedMind)
				}
				return err
			})
		}()
		if err := <-dispatched; err != nil {
			t.Fatal(err)
		}
		go func() {
			ended[1] <- out.InTx(context.Background(), func(ctx context.Context, tx outbox.Tx[TX]) (err error) {
				ids[1], err = tx.Dispatch(ctx, order{"k", 2*seq + 1}, once(key))
				return err
			})
		}()
		select {
		case err := <-ended[1]:
			t.Errorf("the second dispatcher did not wait: %v", err)
			ended[1] <- err
		case <-time.After(moment):
		}
		close(proceed)
		if err := <-ended[0]; (err == nil) != commit {
			t.Fatal(err)
		}
		if err := <-ended[1]; err != nil {
			t.Fatal(err)
		}
		if (ids[0] == ids[1]) != commit {
			t.Errorf("commit %v: the second returns %s, the first %s", commit, ids[1], ids[0])
		}
	}
	s.wantWaiting("after a rollback and a commit of the first", order{"k", 1}, order{"k", 2})
}

// Each dispatcher has two of a few keys, some of which roll back.
func dispatchersAtOnceSendOneMessage[TX any](t *testing.T, s *fixture[TX]) {
	const dispatchers, units, keys = 6, 15, 8
	out := s.outbox(outbox.Config{})
	var mu sync.Mutex
	sent := map[string]map[waybill.MessageID]bool{}
	var wg sync.WaitGroup
	for range dispatchers {
		wg.Go(func() {
			for range units {
				pair := [2]string{fmt.Sprint("key", rand.N(keys)), fmt.Sprint("key", rand.N(keys))}
				for {
					var ids []waybill.MessageID
					err := out.InTx(context.Background(), func(ctx context.Context, tx outbox.Tx[TX]) (err error) {
						ids, err = out.DispatchAll(ctx, tx.SQL(), waybill.NewEnvelope(order{pair[0], 0}, once(pair[0])), waybill.NewEnvelope(order{pair[1], 0}, once(pair[1])))
						if err == nil && rand.N(3) == 0 {
							err = errChangedMind
						}
						return err
					})
					if errors.Is(err, errChangedMind) || errors.Is(err, waybill.ErrTransactionLost) || errors.Is(err, waybill.ErrUnavailable) {
						continue // a deadlock behind a rollback is one, too
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					for i, id := range ids {
						if sent[pair[i]] == nil {
							sent[pair[i]] = map[waybill.MessageID]bool{}
						}
						sent[pair[i]][id] = true
					}
					mu.Unlock()
					break
				}
			}
		})
	}
	wg.Wait()
	for key, ids := range sent {
		if len(ids) != 1 {
			t.Errorf("dispatchers of %s were told %d ids, want one", key, len(ids))
		}
	}
	s.wantBacklog("after all", outbox.Backlog{Pending: len(sent)})
}

func uniqueKeyInTheCallersOwnTransaction[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	var ids []waybill.MessageID
	for i, commit := range []bool{false, true, true} {
		tx := s.begin()
		for range 2 {
			id, err := out.Dispatch(t.Context(), tx, order{"k", i}, once("a"))
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		s.end(tx, commit)
	}
	if ids[0] != ids[1] || ids[1] == ids[2] || ids[2] != ids[3] || ids[3] != ids[4] || ids[4] != ids[5] {
		t.Errorf("ids are %v: want one of the two in the rollback, and another of all later ones", ids)
	}
	s.wantWaiting("after a rollback and two commits", order{"k", 1})
}

func uniqueKeysArePruned[TX any](t *testing.T, s *fixture[TX]) {
	pruner, ok := s.Store.(inbox.Pruner)
	if !ok {
		t.Skip("nothing is pruned")
	}
	out := s.outbox(outbox.Config{})
	kept := dispatchOne(t, out, order{"k", 0}, once("kept"))
	for i := range 3 {
		dispatchOne(t, out, order{"k", 1 + i}, briefly(fmt.Sprint("key", i)))
	}
	for i, want := range []int{2, 1, 0} {
		if n, err := pruner.PruneExpired(t.Context(), 2); n != want || err != nil {
			t.Errorf("batch %d removes %d, %v, want %d", i+1, n, err, want)
		}
	}
	if id := dispatchOne(t, out, order{"k", 9}, once("kept")); id != kept {
		t.Error("a key whose time is not over was pruned")
	}
	// A key that a dispatcher has locked is no obstacle.
	dispatchOne(t, out, order{"k", 5}, briefly("locked"))
	dispatchOne(t, out, order{"k", 6}, briefly("other"))
	if s.OneWriter {
		return
	}
	err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
		if _, err := tx.Dispatch(ctx, order{"k", 7}, once("locked")); err != nil {
			return err
		}
		n, err := pruner.PruneExpired(t.Context(), 10)
		if n != 1 {
			t.Errorf("removed %d beside a locked key, want 1", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
