package waytest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

func orderCases[TX any]() []testCase[TX] {
	return []testCase[TX]{
		{"LateCommitIsNotOvertaken", lateCommitIsNotOvertaken[TX]},
		{"LateCommitOfSeveralKeysIsNotOvertaken", lateCommitOfSeveralKeysIsNotOvertaken[TX]},
		{"UnkeyedMessagesWaitForNobody", unkeyedMessagesWaitForNobody[TX]},
		{"DispatchersToAQueueTakeTurns", dispatchersToAQueueTakeTurns[TX]},
		{"UnitsOfWorkDoNotDeadlock", unitsOfWorkDoNotDeadlock[TX]},
	}
}

// Ids are given before commit. A transaction that dispatches to a key must not
// be published before one that has dispatched to it and is still open, unless
// that one's messages come later by their commit too. Other keys go on.
func lateCommitIsNotOvertaken[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	keys := []string{sameBucket(1)[0], keyOfBucket(0), keyOfBucket(buckets - 1)}
	other := otherBuckets(1)[0]
	sink := &recorder{}
	for _, relay := range s.relays(2) {
		s.relaying(relay, sink, outbox.RelayConfig{})
	}
	// Whatever relays remember of these buckets, they know it now.
	s.put(out, order{keys[0], 0}, order{keys[1], 0}, order{keys[2], 0}, order{other, 0})
	await(t, "the first come", func() bool { return len(sink.all()) == 4 })
	for i, commit := range []bool{true, false, true, true} {
		k := keys[i%len(keys)]
		before := len(sink.all())
		first := s.begin()
		if _, err := out.Dispatch(t.Context(), first, order{k, 1}); err != nil {
			t.Fatal(err)
		}
		second := make(chan error, 1)
		go func() { second <- send(context.Background(), out, order{k, 2}) }()
		overtaken := false
		select {
		case err := <-second: // it must not be published yet, then
			overtaken = true
			second <- err
		case <-time.After(moment):
		}
		if !s.OneWriter {
			s.put(out, order{other, 1})
			await(t, "another bucket's message, meanwhile", func() bool { return slices.Contains(sink.all()[before:], order{other, 1}) })
		}
		if overtaken {
			time.Sleep(moment)
		}
		s.end(first, commit)
		if err := <-second; err != nil {
			t.Fatal(err)
		}
		want := []order{{k, 2}}
		if commit {
			want = []order{{k, 1}, {k, 2}}
		}
		ofKey := func() []order {
			return slices.DeleteFunc(sink.all()[before:], func(o order) bool { return o.Key != k })
		}
		await(t, "the key's messages", func() bool { return len(ofKey()) >= len(want) })
		got := ofKey()
		if overtaken && commit && cmp.Equal(got, []order{{k, 2}, {k, 1}}) {
			t.Errorf("message 2 of %s was published before message 1, whose transaction had dispatched first and was still open", k)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("commit %v: order (-want +got):\n%s", commit, diff)
		}
	}
}

// The same where transactions dispatch to keys of several buckets, the earlier, the
// later or both: they hold, and wait for, the locks of all.
func lateCommitOfSeveralKeysIsNotOvertaken[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	sink := &recorder{}
	s.relaying(s.relays(1)[0], sink, outbox.RelayConfig{})
	keys := []string{keyOfBucket(5), keyOfBucket(20), keyOfBucket(60)}
	of := func(keys []string, seq int) (all []any) {
		for _, k := range keys {
			all = append(all, order{k, seq})
		}
		return all
	}
	for i, k := range keys {
		early, late := of(keys, 2*i), of(keys, 2*i+1)
		switch i {
		case 0:
			late = late[:1]
		case 1:
			early = early[1:2]
		}
		before := len(sink.all())
		first := s.begin()
		if _, err := out.DispatchAll(t.Context(), first, early...); err != nil {
			t.Fatal(err)
		}
		second := make(chan error, 1)
		go func() { second <- send(context.Background(), out, late...) }()
		time.Sleep(2 * moment) // were it not to wait, it would be published by now
		s.end(first, true)
		if err := <-second; err != nil {
			t.Fatal(err)
		}
		await(t, "all messages", func() bool { return len(sink.all()) == before+len(early)+len(late) })
		got := slices.DeleteFunc(sink.all()[before:], func(o order) bool { return o.Key != k })
		if diff := cmp.Diff([]order{{k, 2 * i}, {k, 2*i + 1}}, got); diff != "" {
			t.Errorf("%d keys before %d: order (-want +got):\n%s", len(early), len(late), diff)
		}
	}
}

func keyOfBucket(bucket int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("k", i); outbox.Bucket(key, buckets) == bucket {
			return key
		}
	}
}

func unkeyedMessagesWaitForNobody[TX any](t *testing.T, s *fixture[TX]) {
	if s.OneWriter {
		t.Skip("one transaction is open at a time")
	}
	out := s.outbox(outbox.Config{})
	first := s.begin()
	if _, err := out.DispatchAll(t.Context(), first, order{"", 0}, order{"k", 0}, order{"", 1}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	second := s.begin()
	if _, err := out.DispatchAll(ctx, second, order{"", 2}, order{"", 3}); err != nil {
		t.Fatal(err)
	}
	if err := send(ctx, out, order{"", 4}); err != nil {
		t.Fatal(err)
	}
	s.wantWaiting("while two are open", order{"", 4})
	s.end(second, true)
	s.wantWaiting("while one is open", order{"", 2}, order{"", 3}, order{"", 4})
	s.end(first, true)
	s.wantWaiting("in the end", order{"", 0}, order{"", 1}, order{"", 2}, order{"", 3}, order{"", 4}, order{"k", 0})
}

// A watcher notes the ids of the rows that are settled as published: within a
// key they ascend, or a later commit was published first.
type watcher struct {
	mu   sync.Mutex
	last map[string]int64
	bad  []string
	got  []order
}

type watchedStore struct {
	outbox.Store
	by *watcher
}

func (s watchedStore) Claim(ctx context.Context, transport string, part outbox.Part, limit outbox.ClaimLimit) (outbox.Claim, error) {
	c, err := s.Store.Claim(ctx, transport, part, limit)
	return watchedClaim{c, s.by}, err
}

type watchedClaim struct {
	outbox.Claim
	by *watcher
}

func (c watchedClaim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	c.by.mu.Lock()
	for _, row := range published {
		key := row.Record.Key
		if key != "" && row.ID <= c.by.last[key] {
			c.by.bad = append(c.by.bad, fmt.Sprintf("key %s: row %d after %d", key, row.ID, c.by.last[key]))
		}
		c.by.last[key] = row.ID
		c.by.got = append(c.by.got, bodyOf(row.Record))
	}
	c.by.mu.Unlock()
	return c.Claim.Settle(ctx, published, failed)
}

func (w *watcher) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.got)
}

// Many dispatchers write to the same keys, each in a random order: none is chosen
// as the victim of a deadlock, and relays that run meanwhile find each key in
// order.
func unitsOfWorkDoNotDeadlock[TX any](t *testing.T, s *fixture[TX]) {
	const dispatchers = 8
	transactions := 100
	if raced || testing.Short() {
		transactions = 15
	}
	cfg := outbox.Config{To: outbox.DefaultTransport}
	if s.Queue != nil {
		cfg = outbox.Config{Routes: waybill.Routes{"*": {"q", outbox.DefaultTransport}}, Queues: map[string]string{"q": "q"}}
	}
	out := s.outbox(cfg)
	keys := append(otherBuckets(4), sameBucket(1)...)
	w := &watcher{last: map[string]int64{}}
	for _, store := range s.relays(2) {
		s.relaying(watchedStore{store, w}, &recorder{}, outbox.RelayConfig{Workers: 2})
	}
	var all sync.WaitGroup
	for i := range dispatchers {
		all.Go(func() {
			for n := range transactions {
				err := out.InTx(context.Background(), func(ctx context.Context, tx outbox.Tx[TX]) error {
					for _, k := range rand.Perm(len(keys)) {
						if _, err := tx.Dispatch(ctx, order{keys[k], i*transactions + n}); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	want := dispatchers * transactions * len(keys)
	await(t, "all are published", func() bool { return w.count() >= want || t.Failed() })
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, bad := range w.bad {
		t.Errorf("out of order: %s", bad)
	}
	wantEach(t, "outbox", w.got, keys, dispatchers, transactions)
	if s.Queue != nil && !t.Failed() {
		q := s.queue("q", 0)
		var got []order
		for len(got) < want {
			ds := receive(t, q, 1000)
			for _, d := range ds {
				got = append(got, bodyOf(d.Record))
			}
			if err := q.Ack(context.Background(), ds...); err != nil {
				t.Fatal(err)
			}
		}
		wantEach(t, "queue", got, keys, dispatchers, transactions)
	}
}

// wantEach makes sure that all came, each dispatcher's in its own order.
func wantEach(t *testing.T, where string, got []order, keys []string, dispatchers, transactions int) {
	t.Helper()
	next := map[string][]int{}
	for _, key := range keys {
		next[key] = make([]int, dispatchers)
	}
	for _, o := range got {
		by, n := o.Seq/transactions, o.Seq%transactions
		if next[o.Key][by] != n {
			t.Errorf("%s: key %s: %d of dispatcher %d came, want %d", where, o.Key, n, by, next[o.Key][by])
		}
		next[o.Key][by] = n + 1
	}
	for key, by := range next {
		for i, n := range by {
			if n != transactions {
				t.Errorf("%s: key %s: %d messages of dispatcher %d, want %d", where, key, n, i, transactions)
			}
		}
	}
}
