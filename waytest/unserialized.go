package waytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

func unserializedCases[TX any]() []testCase[TX] {
	return []testCase[TX]{
		{"UnserializedLateCommitIsNotPassedOver", unserializedLateCommitIsNotPassedOver[TX]},
		{"UnserializedDispatchersWaitForNobody", unserializedDispatchersWaitForNobody[TX]},
		{"UnserializedApplicationKeepsTheOrder", unserializedApplicationKeepsTheOrder[TX]},
		{"UnserializedKeyInFlightIsNobodyElses", unserializedKeyInFlightIsNobodyElses[TX]},
		{"UnserializedKeysAndRoutesWaitAlone", unserializedKeysAndRoutesWaitAlone[TX]},
		{"BlockedKeyWaitsWithAllItsRows", blockedKeyWaitsWithAllItsRows[TX]},
		{"UnserializedMessagesMoveToOtherBuckets", unserializedMessagesMoveToOtherBuckets[TX]},
		{"UnserializedMessagesMayBeDelayed", unserializedMessagesMayBeDelayed[TX]},
	}
}

var unserialized = outbox.Config{Unserialized: true}

// settled is longer than relays take to know that nobody can still commit a row
// with an id that was given before.
const settled = 2500 * time.Millisecond

// A key's message is committed after a later one of another key in its bucket was
// relayed, and then the next of its own: it must come before that. Whatever other
// messages are, a relay must not begin to read behind them.
func unserializedLateCommitIsNotPassedOver[TX any](t *testing.T, s *site[TX]) {
	if s.OneWriter {
		t.Skip("one transaction is open at a time")
	}
	out, locking := s.outbox(unserialized), s.outbox(outbox.Config{})
	keys := sameBucket(3)
	a, b, locked := keys[0], keys[1], keys[2]
	for _, next := range []bool{true, false} {
		first := s.begin()
		if _, err := out.Dispatch(t.Context(), first, order{b, 1}); err != nil {
			t.Fatal(err)
		}
		s.put(out, order{a, 1})
		s.put(locking, order{locked, 1})
		got := s.take(outbox.DefaultTransport)
		for start := time.Now(); time.Since(start) < settled; time.Sleep(moment) {
			got = append(got, s.take(outbox.DefaultTransport)...)
		}
		if diff := cmp.Diff(group([]order{{a, 1}, {locked, 1}}), byKey(got)); diff != "" {
			t.Fatalf("while it is open (-want +got):\n%s", diff)
		}
		s.end(first, true)
		want := fmt.Sprint(b, 1)
		if next {
			s.put(out, order{b, 2})
			want = fmt.Sprint(b, 1, " ", b, 2)
		}
		// With the next of its key it comes at once, or it would be too late. Alone
		// it may take a while.
		c := s.claim(manyRows)
		for start := time.Now(); !next && len(c.Rows()) == 0 && time.Since(start) < patience; time.Sleep(moment) {
			c = s.claim(manyRows)
		}
		if got := names(c.Rows()); got != want {
			t.Fatalf("a relay takes %q, want %q", got, want)
		}
		s.settle(c, c.Rows())
		s.take(outbox.DefaultTransport)
	}
}

// Those who take no lock wait neither for each other nor for those who do, nor
// these for them; two of these in one bucket take turns.
func unserializedDispatchersWaitForNobody[TX any](t *testing.T, s *site[TX]) {
	if s.OneWriter {
		t.Skip("one transaction is open at a time")
	}
	out, locking := s.outbox(unserialized), s.outbox(outbox.Config{})
	keys := sameBucket(4)
	open := map[string]TX{}
	begin := func(out *outbox.Outbox[TX], key string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		tx := s.begin()
		open[key] = tx
		if _, err := out.DispatchAll(ctx, tx, order{key, 0}, order{key, 1}); err != nil {
			t.Fatal(err)
		}
	}
	begin(out, keys[0])
	begin(out, keys[1])
	begin(locking, keys[2])
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := send(ctx, out, order{otherBuckets(1)[0], 0}, waybill.NewEnvelope(order{keys[3], 0}, waybill.Delay(time.Hour))); err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() { waits <- send(context.Background(), locking, order{keys[3], 0}) }()
	select {
	case err := <-waits:
		t.Errorf("a dispatcher with a lock did not wait for another one (%v)", err)
		waits <- err
	case <-time.After(moment):
	}
	s.end(open[keys[0]], true)
	s.end(open[keys[1]], false)
	s.end(open[keys[2]], true)
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
	s.wantWaiting("in the end", order{keys[0], 0}, order{keys[0], 1}, order{keys[2], 0}, order{keys[2], 1}, order{keys[3], 0}, order{otherBuckets(1)[0], 0})
	s.wantLeft("in the end", outbox.Left{Pending: 6, Delayed: 1})
}

// An application with a lock of its own for each key, beside one without, while
// several relays work: transactions stay open for a while after they have
// dispatched, and each key comes in the order of its commits.
func unserializedApplicationKeepsTheOrder[TX any](t *testing.T, s *site[TX]) {
	const dispatchers = 6
	transactions := 150
	if raced || testing.Short() {
		transactions = 25
	}
	out, locking := s.outbox(unserialized), s.outbox(outbox.Config{})
	sink := &recorder{}
	for _, store := range s.relays(2) {
		s.relaying(store, sink, outbox.RelayConfig{Workers: 2})
	}
	keys := append(sameBucket(6), otherBuckets(2)...)
	locks, next := make([]sync.Mutex, len(keys)), make([]int, len(keys))
	var all sync.WaitGroup
	for range dispatchers {
		all.Go(func() {
			for range transactions {
				k := rand.IntN(len(keys))
				to := out
				if k%4 == 3 { // this key's dispatchers take the outbox's lock, too
					to = locking
				}
				locks[k].Lock()
				err := s.inOwnTx(func(ctx context.Context, tx TX) error {
					_, err := to.Dispatch(ctx, tx, order{keys[k], next[k]})
					time.Sleep(time.Duration(rand.IntN(4)) * time.Millisecond)
					return err
				})
				next[k]++
				locks[k].Unlock()
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	await(t, "all are published", func() bool { return len(sink.all()) >= dispatchers*transactions || t.Failed() })
	perKey(t, sink.all())
}

func unserializedKeyInFlightIsNobodyElses[TX any](t *testing.T, s *site[TX]) {
	out := s.outbox(unserialized)
	key := sameBucket(1)[0]
	s.put(out, order{key, 1}, order{key, 2})
	c := s.claim(outbox.Max{Rows: 1, Bytes: 1 << 20})
	if got := names(c.Rows()); got != key+"1" {
		t.Fatalf("claimed %q", got)
	}
	s.put(out, order{key, 3})
	for _, other := range s.relays(2) {
		if rows, err := visit(other, outbox.DefaultTransport, false); err != nil || len(rows) > 0 {
			t.Errorf("another relay has %q meanwhile, %v", names(rows), err)
		}
	}
	s.settle(c, c.Rows())
	s.wantWaiting("then", order{key, 2}, order{key, 3})
}

// A key whose head is refused, or behind a message of a blocked route, waits;
// others of its bucket go on, however many rows wait.
func unserializedKeysAndRoutesWaitAlone[TX any](t *testing.T, s *site[TX]) {
	operator := s.operator()
	_, blocksRoutes := s.Store.(outbox.RouteStore)
	out := s.outbox(unserialized)
	keys := sameBucket(4)
	refused, routed, flows := keys[0], keys[1], keys[2]
	const many = 60
	msgs := []any{order{refused, 0}, named("x", order{routed, 0})}
	for i := range many {
		msgs = append(msgs, order{refused, i + 1}, order{routed, i + 1})
	}
	s.put(out, msgs...)
	c := s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: s.row(c, order{refused, 0}), Err: errRefused, RetryIn: time.Hour},
		outbox.Failure{Row: s.row(c, order{routed, 0}), Err: errRefused, RetryIn: time.Hour, Route: blocksRoutes})
	s.wantWaiting("while they wait")
	few := outbox.Max{Rows: 2, Bytes: 1 << 20}
	s.put(out, order{flows, 0}, order{refused, many + 1}, order{flows, 1})
	for i := range 2 {
		c = s.claim(few)
		if got, want := names(c.Rows()[:1]), fmt.Sprint(flows, i); got != want {
			t.Fatalf("a small claim has %q, want %q", names(c.Rows()), want)
		}
		s.settle(c, c.Rows()[:1])
	}
	blocked, err := operator.Blocked(t.Context(), "", 0)
	if err != nil || len(blocked) != 2 {
		t.Errorf("blocked: %+v, %v, want two entries", blocked, err)
	}
	// What is behind the route's message in its key is counted where routes are.
	s.wantLeft("while they wait", outbox.Left{Pending: 2*many + 3, Blocked: 2*many + 3})
	if _, err := operator.Release(t.Context(), admin.BlockedQuery{}); err != nil {
		t.Fatal(err)
	}
	var want []order
	for i := range many + 1 {
		want = append(want, order{refused, i}, order{routed, i})
	}
	s.wantWaiting("when they are let go", append(want, order{refused, many + 1})...)
	s.drain(&recorder{}, outbox.RelayConfig{})
	s.wantLeft("in the end", outbox.Left{})
	if blocked, err := operator.Blocked(t.Context(), "", 0); err != nil || len(blocked) > 0 {
		t.Errorf("still blocked: %+v, %v", blocked, err)
	}
}

// The number of buckets changes while such messages wait, one is blocked, and the
// dispatcher has begun a transaction with the old number in mind.
func unserializedMessagesMoveToOtherBuckets[TX any](t *testing.T, s *site[TX]) {
	if s.Bucket == nil {
		t.Skip("the outbox has no buckets")
	}
	operator := s.operator()
	out := s.outbox(unserialized)
	keys := append(sameBucket(2), otherBuckets(8)...)
	dispatched := 0
	var ids []waybill.MessageID
	for _, n := range []int{256, 16, 64} {
		for _, key := range keys {
			id, err := dispatchOne(out, order{key, dispatched})
			if errors.Is(err, outbox.ErrBucketsChanged) {
				id, err = dispatchOne(out, order{key, dispatched})
			}
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		dispatched++
		if _, err := operator.Rebucket(t.Context(), n, false); err != nil {
			t.Fatal(err)
		}
		for i, id := range ids {
			want := outbox.Unserialized + outbox.Bucket(keys[i%len(keys)], n)
			if got, err := s.Bucket(t.Context(), id); err != nil || got != want {
				t.Errorf("of %d buckets: message %d is in %d, %v, want %d", n, i, got, err, want)
			}
		}
	}
	var want []order
	for _, key := range keys {
		for i := range dispatched {
			want = append(want, order{key, i})
		}
	}
	// One that knows 64, and whose snapshot does not show that there are others now.
	tx := s.begin()
	if err := s.Insert(t.Context(), tx, "before"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.relays(2)[1].(admin.Database).Rebucket(t.Context(), 128, false); err != nil {
		t.Fatal(err)
	}
	last := order{keys[0], dispatched}
	id, err := out.Dispatch(t.Context(), tx, last)
	s.end(tx, err == nil)
	if errors.Is(err, outbox.ErrBucketsChanged) { // it is to be run again
		id, err = dispatchOne(out, last)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Bucket(t.Context(), id); err != nil || got != outbox.Unserialized+outbox.Bucket(last.Key, 128) {
		t.Errorf("a message of a transaction from before is in bucket %d, %v", got, err)
	}
	s.wantWaiting("in the end", append(want, last)...)
	s.drain(&recorder{}, outbox.RelayConfig{})
	s.wantLeft("in the end", outbox.Left{})
}

func dispatchOne[TX any](out *outbox.Outbox[TX], o order) (id waybill.MessageID, err error) {
	err = out.InTx(context.Background(), func(ctx context.Context, tx outbox.Tx[TX]) error {
		id, err = tx.Dispatch(ctx, o)
		return err
	})
	return id, err
}

func unserializedMessagesMayBeDelayed[TX any](t *testing.T, s *site[TX]) {
	out := s.outbox(unserialized)
	key := sameBucket(1)[0]
	id, err := waybill.NewMessageID()
	if err != nil {
		t.Fatal(err)
	}
	s.put(out, waybill.NewEnvelope(order{key, 0}, waybill.Delay(20*time.Millisecond), id), waybill.NewEnvelope(order{key, 1}, waybill.Delay(40*time.Millisecond)))
	var rows []outbox.ClaimedRow
	await(t, "both are due", func() bool { rows = s.look(outbox.DefaultTransport); return len(rows) == 2 })
	if got := names(rows); got != fmt.Sprint(key, 0, " ", key, 1) {
		t.Errorf("due are %q", got)
	}
	if s.Bucket == nil {
		return
	}
	if got, err := s.Bucket(t.Context(), id); err != nil || got != outbox.Unserialized+7 {
		t.Errorf("it is in bucket %d, %v, want %d", got, err, outbox.Unserialized+7)
	}
}

// A key is blocked as a whole, whether the message that was refused is serialized and
// the others are not, or the other way round.
func blockedKeyWaitsWithAllItsRows[TX any](t *testing.T, s *site[TX]) {
	operator := s.operator()
	kinds := []*outbox.Outbox[TX]{s.outbox(outbox.Config{}), s.outbox(unserialized)}
	keys := sameBucket(4)
	for i, k := range keys[:2] {
		s.put(kinds[i], order{k, 0})
		c := s.claim(manyRows)
		s.settle(c, nil, outbox.Failure{Row: s.row(c, order{k, 0}), Err: errRefused, RetryIn: time.Hour})
		s.put(kinds[1-i], order{k, 1})
		for j, free := range keys[2:] { // of its bucket
			s.put(kinds[j], order{free, i})
			c = s.claim(manyRows)
			if got, want := names(c.Rows()), fmt.Sprint(free, i); got != want {
				t.Errorf("while %s waits a claim has %q, want %q", k, got, want)
			}
			s.settle(c, c.Rows())
		}
		if _, err := operator.Release(t.Context(), admin.BlockedQuery{}); err != nil {
			t.Fatal(err)
		}
		s.wantWaiting("when it is let go", order{k, 0}, order{k, 1})
		s.drain(&recorder{}, outbox.RelayConfig{})
	}
}
