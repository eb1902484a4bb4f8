package waytest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
)

// A counted store counts the transactions of an inbox.
type counted[TX any] struct {
	inbox.Store[TX]
	begun  atomic.Int64
	begins func() // runs before each; may be nil
}

func (c *counted[TX]) InTx(ctx context.Context, fn func(ctx context.Context, tx TX) error) error {
	c.begun.Add(1)
	if c.begins != nil {
		c.begins()
	}
	return c.Store.InTx(ctx, fn)
}

// group is handle for groups of n, which wait for all n.
func (h *handling[TX]) group(n int, fn func(ctx context.Context, tx TX, m order) error) *counted[TX] {
	h.s.t.Helper()
	store := &counted[TX]{Store: h.s.inbox()}
	inbox.Handle(h.bus, store, "h", h.effect("h", fn), inbox.Option{Linger: patience}, inbox.Group(n))
	return store
}

// together receives recs at once, and returns what became of each.
func (h *handling[TX]) together(recs ...*waybill.Record) []error {
	errs := make([]error, len(recs))
	var all sync.WaitGroup
	for i, rec := range recs {
		all.Go(func() { errs[i] = h.receive(rec) })
	}
	all.Wait()
	return errs
}

// arrivals are n messages of as many keys, numbered from from.
func arrivals(t testing.TB, from, n int) (recs []*waybill.Record) {
	t.Helper()
	for i := range n {
		recs = append(recs, arrival(t, order{fmt.Sprint("k", from+i), from + i}))
	}
	return recs
}

// effects are those of the messages with these numbers.
func effects(seqs ...int) (texts []string) {
	for _, seq := range seqs {
		texts = append(texts, fmt.Sprint("h ", seq))
	}
	return texts
}

// orders are the messages that arrivals with these numbers dispatch.
func orders(seqs ...int) (all []order) {
	for _, seq := range seqs {
		all = append(all, order{fmt.Sprint("k", seq), seq})
	}
	return all
}

func noErrors(t testing.TB, what string, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Errorf("%s: message %d = %v", what, i, err)
		}
	}
}

func groupIsOneTransaction[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	h := s.handling()
	store := h.group(5, func(ctx context.Context, tx TX, m order) error {
		_, err := out.Dispatch(ctx, tx, m)
		return err
	})
	noErrors(t, "the group", h.together(arrivals(t, 0, 5)...))
	h.wantEffects("in the end", effects(0, 1, 2, 3, 4)...)
	s.wantWaiting("in the end", orders(0, 1, 2, 3, 4)...)
	if n := store.begun.Load(); n != 1 {
		t.Errorf("a group of 5 had %d transactions, want 1", n)
	}
}

func groupMemberThatFailsFailsAlone[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	h := s.handling()
	var ill atomic.Bool
	ill.Store(true)
	store := h.group(6, func(ctx context.Context, tx TX, m order) error {
		if _, err := out.Dispatch(ctx, tx, m); err != nil {
			return err
		}
		switch {
		case !ill.Load() || m.Seq%2 == 0:
			return nil
		case m.Seq == 3:
			panic("boom")
		}
		return errChangedMind
	})
	recs := arrivals(t, 0, 6)
	for i, err := range h.together(recs...) {
		var panicked *waybill.PanicError
		switch {
		case i%2 == 0 && err != nil, i%2 == 1 && i != 3 && !errors.Is(err, errChangedMind), i == 3 && !errors.As(err, &panicked):
			t.Errorf("message %d of the group = %v", i, err)
		}
	}
	h.wantEffects("after three failed", effects(0, 2, 4)...)
	s.wantWaiting("after three failed", orders(0, 2, 4)...)
	if n := store.begun.Load(); n != 1 {
		t.Errorf("a group in which three failed had %d transactions, want 1", n)
	}
	ill.Store(false)
	noErrors(t, "the second time", h.together(recs...))
	h.wantEffects("in the end", effects(0, 1, 2, 3, 4, 5)...)
	s.wantWaiting("in the end", orders(0, 1, 2, 3, 4, 5)...)
	if n := h.duplicates.Load(); n != 3 {
		t.Errorf("%d duplicates were observed, want 3", n)
	}
}

func groupKnowsDuplicates[TX any](t *testing.T, s *fixture[TX]) {
	h := s.handling()
	store := h.group(3, fine[TX])
	begun := make(chan struct{}, 10)
	store.begins = func() { begun <- struct{}{} }
	recs := arrivals(t, 0, 3)
	// One comes twice before its group is full: the second does not join, and its transaction is
	// under way when that of the group begins.
	var full sync.WaitGroup
	full.Go(func() {
		<-begun
		noErrors(t, "the last of the group", h.together(recs[2]))
	})
	noErrors(t, "at first", h.together(recs[0], recs[1], recs[1]))
	full.Wait()
	h.wantEffects("at first", effects(0, 1, 2)...)
	later := arrivals(t, 3, 1)
	noErrors(t, "again, with a new one", h.together(recs[0], later[0], recs[2]))
	h.wantEffects("in the end", effects(0, 1, 2, 3)...)
	if n := h.duplicates.Load(); n != 3 {
		t.Errorf("%d duplicates were observed, want 3", n)
	}
	if n := store.begun.Load(); n != 3 {
		t.Errorf("%d transactions, want one of each group and one of the copy", n)
	}
}

// Groups of two processes get the same messages at once, each in its own order.
func groupsOfTheSameMessages[TX any](t *testing.T, s *fixture[TX]) {
	const rounds, size = 5, 8
	var hs []*handling[TX]
	for i, store := range s.relays(2) {
		there := *s
		there.Store = store
		h := there.handling()
		h.attempts.Store(int64(100_000 * i))
		h.group(size, fine[TX])
		hs = append(hs, h)
	}
	var want []int
	for round := range rounds {
		recs := arrivals(t, round*size, size)
		var all sync.WaitGroup
		for _, h := range hs {
			mine := slices.Clone(recs)
			rand.Shuffle(size, func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
			all.Go(func() { noErrors(t, "a group", h.together(mine...)) })
		}
		all.Wait()
		for i := range size {
			want = append(want, round*size+i)
		}
	}
	hs[0].wantEffects("in the end", effects(want...)...)
}

func groupWhoseTransactionIsLost[TX any](t *testing.T, s *fixture[TX]) {
	if len(s.Losses) == 0 {
		t.Skip("the database ends no transaction by itself")
	}
	out := s.outbox(outbox.Config{})
	var want []int
	for _, what := range slices.Sorted(maps.Keys(s.Losses)) {
		for _, ignored := range []bool{true, false} {
			from := len(want)
			h := s.handling()
			h.attempts.Store(int64(1000 * from))
			var ill atomic.Bool
			ill.Store(true)
			h.group(4, func(ctx context.Context, tx TX, m order) error {
				if ill.Load() && m.Seq == from+2 {
					err := s.Losses[what](ctx, tx)
					if !ignored {
						return err
					}
					_ = s.Insert(ctx, tx, "h after 1")
				}
				_, err := out.Dispatch(ctx, tx, m)
				return err
			})
			recs := arrivals(t, from, 4)
			for i, err := range h.together(recs...) {
				if (err != nil) != (i == 2) {
					t.Errorf("%s, ignored %t: message %d of the group = %v", what, ignored, i, err)
				}
			}
			h.wantEffects("after "+what, effects(append(slices.Clone(want), from, from+1, from+3)...)...)
			ill.Store(false)
			noErrors(t, "after "+what, h.together(recs...))
			want = append(want, from, from+1, from+2, from+3)
			h.wantEffects("after "+what+" and success", effects(want...)...)
			s.wantWaiting("after "+what+" and success", orders(want...)...)
		}
	}
}

// Messages that other members dispatched are sent, or the members fail.
func groupMemberThatEndsTheTransaction[TX any](t *testing.T, s *fixture[TX]) {
	if len(s.Ends) == 0 {
		t.Skip("a function cannot end its transaction")
	}
	out := s.outbox(outbox.Config{})
	for i, what := range slices.Sorted(maps.Keys(s.Ends)) {
		from := 4 * i
		h := s.handling()
		h.attempts.Store(int64(1000 * i))
		h.group(4, func(ctx context.Context, tx TX, m order) error {
			if m.Seq == from+2 {
				_ = s.Ends[what](ctx, tx)
				return nil
			}
			_, err := out.Dispatch(ctx, tx, m)
			return err
		})
		errs := h.together(arrivals(t, from, 4)...)
		if errs[2] == nil {
			t.Errorf("%s: the message that ended the transaction succeeded", what)
		}
		sent := byKey(s.take(outbox.DefaultTransport))
		for j, err := range errs {
			if got := len(sent[fmt.Sprint("k", from+j)]); j != 2 && (got == 1) != (err == nil) {
				t.Errorf("%s: message %d dispatched %d, and its error is %v", what, j, got, err)
			}
		}
	}
}

func groupWhoseCommitIsUnknown[TX any](t *testing.T, s *fixture[TX]) {
	if s.LostAnswer == nil {
		t.Skip("no answer can be lost")
	}
	store, lose := s.LostAnswer(t)
	there := *s
	there.Store = store
	h := there.handling()
	out := newOutbox(t, store, outbox.Config{})
	dispatch := func(ctx context.Context, tx TX, m order) error {
		_, err := out.Dispatch(ctx, tx, m)
		return err
	}
	var runs atomic.Int64
	h.group(3, func(ctx context.Context, tx TX, m order) error {
		err := dispatch(ctx, tx, m)
		if runs.Add(1) == 3 {
			lose()
		}
		return err
	})
	recs := arrivals(t, 0, 3)
	h.together(recs...) // the network may not be back yet
	later := s.handling()
	later.attempts.Store(1000)
	out = s.outbox(outbox.Config{})
	later.group(3, dispatch)
	noErrors(t, "afterwards", later.together(recs...))
	later.wantEffects("in the end", effects(0, 1, 2)...)
	s.wantWaiting("in the end", orders(0, 1, 2)...)
	if n := runs.Load(); n != 3 {
		t.Errorf("the handler ran %d times, want 3: the commit has happened", n)
	}
}

// It would wait for itself.
func groupInsideATransaction[TX any](t *testing.T, s *fixture[TX]) {
	h := s.handling()
	h.group(2, fine[TX])
	rec := arrival(t, order{"k", 1})
	err := s.inbox().InTx(t.Context(), func(ctx context.Context, _ TX) error { return h.bus.HandleRecord(ctx, rec, "events", 0) })
	if !errors.Is(err, waybill.ErrNestedTransaction) {
		t.Errorf("a grouped handler inside InTx = %v, want ErrNestedTransaction", err)
	}
	// Nor may a handler of a group begin another transaction.
	out := s.outbox(outbox.Config{})
	h = s.handling()
	h.group(2, func(ctx context.Context, _ TX, m order) error { return send(ctx, out, m) })
	for _, err := range h.together(arrivals(t, 2, 2)...) {
		if !errors.Is(err, waybill.ErrNestedTransaction) {
			t.Errorf("InTx in a handler of a group = %v, want ErrNestedTransaction", err)
		}
	}
	h.wantEffects("afterwards")
}
