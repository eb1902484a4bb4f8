package waytest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
)

func lookupFindsWhatWasHandled[TX any](t *testing.T, s *fixture[TX]) {
	operator := s.operator()
	h := s.handling()
	h.handle("a", fine[TX])
	h.handle("b", fine[TX])
	plain, keyed, other := arrival(t, order{"k", 1}), arrival(t, order{"k", 2}), arrival(t, order{"k", 3})
	keyed.Headers = map[string]string{waybill.HeaderIdempotencyKey: "pay/ment 42"}
	for _, rec := range []*waybill.Record{plain, keyed} {
		if err := h.receive(rec); err != nil {
			t.Fatal(err)
		}
	}
	for what, want := range map[string]struct {
		id  waybill.MessageID
		key string
	}{
		plain.ID.String(): {plain.ID, plain.ID.String()}, keyed.ID.String(): {keyed.ID, "k:order.placed/pay/ment 42"}, "pay/ment 42": {keyed.ID, "k:order.placed/pay/ment 42"},
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
	for _, what := range []string{other.ID.String(), "Pay/ment 42", "pay/ment 42 ", "pay", "ment 42", "k:pay/ment 42", "k:order.placed/pay/ment 42", "order.placed/pay/ment 42", "42", "%", "", "nobody's \x00"} {
		if found, err := operator.InboxLookup(t.Context(), what); !errors.Is(err, waybill.ErrNotFound) {
			t.Errorf("InboxLookup(%q) = %+v, %v, want ErrNotFound", what, found, err)
		}
	}
	stats, err := operator.InboxStats(t.Context())
	if err != nil || len(stats) != 2 || stats[0].Handler != "a" || stats[0].Entries != 2 || stats[1].Handler != "b" || stats[1].Entries != 2 || stats[0].Oldest.After(stats[0].Newest) {
		t.Errorf("InboxStats = %+v, %v, want two entries for each of a and b", stats, err)
	}
}

// Entries of one transaction may have the same time.
func latestEntriesAreReadPageByPage[TX any](t *testing.T, s *fixture[TX]) {
	operator := s.operator()
	store := s.inbox()
	handlers := map[string]int{"a": 12, "b": 5, "B": 3}
	for range 2 {
		err := store.InTx(t.Context(), func(ctx context.Context, tx TX) error {
			for handler, n := range handlers {
				for range n {
					id := newID(t)
					if _, err := store.InsertTx(ctx, tx, inbox.Entry{Handler: handler, DedupKey: id.String(), MessageID: id}); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(handler string, limit int) (all []admin.InboxEntry) {
		q := admin.InboxQuery{Handler: handler, Limit: limit}
		for {
			page, err := operator.InboxEntries(t.Context(), q)
			if err != nil || limit > 0 && len(page) > limit {
				t.Fatalf("InboxEntries(%+v) = %d entries, %v", q, len(page), err)
			}
			all = append(all, page...)
			if limit == 0 || len(page) < limit {
				return all
			}
			q.After = &page[len(page)-1]
		}
	}
	for handler, want := range map[string]int{"": 40, "a": 24, "b": 10, "B": 6, "A": 0} {
		whole := read(handler, 0)
		seen := map[waybill.MessageID]bool{}
		for i, e := range whole {
			seen[e.MessageID] = true
			if handler != "" && e.Handler != handler || i > 0 && e.ProcessedAt.After(whole[i-1].ProcessedAt) {
				t.Errorf("of handler %q entry %d is %+v", handler, i, e)
			}
		}
		if len(whole) != want || len(seen) != want {
			t.Errorf("of handler %q %d entries and %d messages, want %d", handler, len(whole), len(seen), want)
		}
		for _, limit := range []int{1, 7} {
			if diff := cmp.Diff(whole, read(handler, limit)); diff != "" {
				t.Errorf("of handler %q in pages of %d (-whole +pages):\n%s", handler, limit, diff)
			}
		}
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

// Applications record how long they count on entries, and the longest counts, until an
// operator sets another.
func pruningKeepsWhatAnApplicationCountsOn[TX any](t *testing.T, s *fixture[TX]) {
	operator := s.operator()
	pruner, ok := s.Store.(inbox.Pruner)
	if !ok {
		t.Skip("the store is no inbox.Pruner")
	}
	retention := func(what string, want time.Duration) {
		t.Helper()
		if got, err := operator.InboxRetention(t.Context()); err != nil || got != want {
			t.Errorf("%s: InboxRetention = %v, %v, want %v", what, got, err, want)
		}
	}
	prune := func(what string, want int) {
		t.Helper()
		if n, err := pruner.PruneExpired(t.Context(), 2); err != nil || n != want {
			t.Errorf("%s: PruneExpired = %d, %v, want %d", what, n, err, want)
		}
	}
	s.put(s.outbox(outbox.Config{}), order{"k", 0})
	retention("before a message was handled", 0)
	h := s.handling()
	h.handle("h", fine[TX])
	for i := range 3 {
		if err := h.receive(arrival(t, order{"k", i})); err != nil {
			t.Fatal(err)
		}
	}
	own := s.inbox().Retention()
	retention("after messages were handled", own)
	var refused *admin.RetentionError
	if n, err := operator.InboxPrune(t.Context(), own-time.Second, nil); !errors.As(err, &refused) || n != 0 || refused.Recorded != own {
		t.Errorf("InboxPrune below the retention = %d, %v, want a RetentionError", n, err)
	}
	prune("entries of now", 0)
	if err := operator.SetInboxRetention(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	retention("after it was set", time.Second)
	time.Sleep(2500 * time.Millisecond) // beyond the retention and the resolution of the column
	prune("the first batch of expired entries", 2)
	prune("the rest", 1)
	if s.Another != nil { // another application begins
		there := *s
		there.Store = s.Another(t)
		other := there.handling()
		other.handle("h", fine[TX])
		if err := other.receive(arrival(t, order{"k", 9})); err != nil {
			t.Fatal(err)
		}
		retention("after another application began", own)
	}
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
