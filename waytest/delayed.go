package waytest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

func delayedMessageIsOrderedFromItsDueTime[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	start := time.Now()
	var msgs []any
	for i, delay := range []time.Duration{600 * time.Millisecond, 300 * time.Millisecond, 0, time.Hour} {
		msgs = append(msgs, waybill.NewEnvelope(order{"k", i}, waybill.Delay(delay)))
	}
	s.put(out, msgs...) // at once: time between them would change their order
	sink := &recorder{}
	for _, store := range s.relays(2) {
		s.relaying(store, sink, outbox.RelayConfig{})
	}
	await(t, "all come", func() bool { return len(sink.all()) == 3 })
	if took := time.Since(start); took < 600*time.Millisecond {
		t.Errorf("the last came after %v, it was delayed by 600 ms", took)
	}
	if diff := cmp.Diff([]order{{"k", 2}, {"k", 1}, {"k", 0}}, sink.all()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	await(t, "all is settled", func() bool {
		left, err := s.Store.Backlog(t.Context(), outbox.DefaultTransport)
		return err == nil && left == outbox.Backlog{Delayed: 1}
	})
}

// All are due in one claim, in an order that is not that of their dispatch, and
// several relays move them.
func delayedMessagesOfAKeyMoveInTheOrderTheyAreDue[TX any](t *testing.T, s *fixture[TX]) {
	s.outbox(outbox.Config{})
	want := map[string]int{"k": 1100, sameBucket(1)[0]: 50} // more than one transaction moves
	longAgo, due := s.putOverdue(want)
	sink := &recorder{refuse: func(rec *waybill.Record) error {
		at := longAgo.Add(due(bodyOf(rec).Seq)) // from then on it is ordered, and aged
		if off := rec.DispatchedAt.Sub(at); off < -time.Second || off > time.Second || rec.Delay != 0 {
			t.Errorf("%v is aged from %v with a delay of %v, want from %v, when it was due", bodyOf(rec), rec.DispatchedAt, rec.Delay, at)
		}
		return nil
	}}
	for _, store := range s.relays(3) {
		s.relaying(store, sink, outbox.RelayConfig{Workers: 2})
	}
	await(t, "all come", func() bool { return len(sink.all()) >= 1150 })
	if diff := cmp.Diff(want, perKey(t, sink.all())); diff != "" {
		t.Errorf("messages by key (-want +got):\n%s", diff)
	}
}

// putOverdue writes delayed messages that are due, so many of each key, from 0 on in
// the order of the time due, and not in the order they are written. It returns when
// they were dispatched, and the delay of each.
func (s *fixture[TX]) putOverdue(keys map[string]int) (dispatched time.Time, delay func(seq int) time.Duration) {
	s.t.Helper()
	dispatched = time.Now().Add(-time.Hour)
	delay = func(seq int) time.Duration { return time.Minute + time.Duration(seq)*10*time.Millisecond }
	var rows []outbox.Row
	for key, n := range keys {
		for i := range n {
			seq := i * 7 % n
			rows = append(rows, outbox.Row{Transport: outbox.DefaultTransport, Record: &waybill.Record{
				ID: newID(s.t), Name: "order.placed", Key: key, ContentType: "application/json", Body: fmt.Appendf(nil, `{"key":%q,"seq":%d}`, key, seq),
				DispatchedAt: dispatched, Delay: delay(seq),
			}})
		}
	}
	err := s.Store.InTx(s.t.Context(), func(ctx context.Context, tx TX) error { return s.Store.Write(ctx, tx, rows...) })
	if err != nil {
		s.t.Fatal(err)
	}
	return dispatched, delay
}

// A transaction that stays open after it has dispatched holds back its bucket, the
// delayed messages included. A promoter that waited for it would be missed by the relay,
// and would keep the locks of other buckets from dispatching transactions.
func openTransactionHoldsBackDelayedMessagesOfItsBucketAlone[TX any](t *testing.T, s *fixture[TX]) {
	if s.OneWriter {
		t.Skip("one transaction is open at a time")
	}
	out := s.outbox(outbox.Config{})
	held, free := keyOfBucket(50), []string{keyOfBucket(5), keyOfBucket(60)} // below and above it
	open := s.begin()
	if _, err := out.Dispatch(t.Context(), open, order{held, 0}); err != nil {
		t.Fatal(err)
	}
	s.putOverdue(map[string]int{held: 1100, free[0]: 1200, free[1]: 1200}) // and the held messages come first in a read
	sink := &recorder{}
	s.relaying(s.relays(1)[0], sink, outbox.RelayConfig{Workers: 1})
	of := func(keys ...string) (found []order) {
		return slices.DeleteFunc(sink.all(), func(o order) bool { return !slices.Contains(keys, o.Key) })
	}
	await(t, "the delayed messages of other buckets", func() bool { return len(of(free...)) == 2400 })
	ctx, cancel := context.WithTimeout(t.Context(), patience/2)
	defer cancel()
	slow := 0
	for i := range 20 {
		begun := time.Now()
		if err := send(ctx, out, order{free[i%2], 1200 + i/2}); err != nil {
			t.Fatalf("dispatch to another bucket, beside the promoter: %v", err)
		}
		if time.Since(begun) > time.Second {
			slow++
		}
		time.Sleep(moment / 3)
	}
	if slow > 5 { // fewer are those of a busy machine
		t.Errorf("%d of 20 dispatches to other buckets took more than a second beside the promoter", slow)
	}
	await(t, "the messages of other buckets", func() bool { return len(of(free...)) == 2420 })
	if early := of(held); len(early) > 0 {
		t.Errorf("%d messages of the key came before their transaction ended", len(early))
	}
	s.end(open, true)
	await(t, "the delayed messages of the key", func() bool { return len(of(held)) >= 1101 })
	want := []order{{held, 0}}
	for i := range 1100 {
		want = append(want, order{held, i})
	}
	if diff := cmp.Diff(want, of(held)); diff != "" {
		t.Errorf("order of the key (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{free[0]: 1210, free[1]: 1210}, perKey(t, of(free...))); diff != "" {
		t.Errorf("messages by key (-want +got):\n%s", diff)
	}
}

// Where one transaction follows the other the lock is never free: a promoter waits
// for it.
func delayedMessageOfABusyKeyIsMoved[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	sink := &recorder{}
	s.relaying(s.relays(1)[0], sink, outbox.RelayConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	for i := range 8 { // SQLite's writing connection goes to any of its waiters: with many, one waits for long
		busy.Go(func() {
			for n := range 1_000_000 {
				if err := send(context.WithoutCancel(ctx), out, order{"k", i*1_000_000 + n}); err != nil {
					t.Errorf("dispatch: %v", err)
				}
				if ctx.Err() != nil {
					return
				}
			}
		})
	}
	defer busy.Wait()
	defer cancel()
	const delayed = -1
	s.put(out, waybill.NewEnvelope(order{"k", delayed}, waybill.Delay(moment)))
	await(t, "the delayed message of the busy key", func() bool { return slices.Contains(sink.all(), order{"k", delayed}) })
}
