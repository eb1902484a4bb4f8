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
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
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
func lateCommitIsNotOvertaken[TX any](t *testing.T, s *site[TX]) {
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
func lateCommitOfSeveralKeysIsNotOvertaken[TX any](t *testing.T, s *site[TX]) {
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

func unkeyedMessagesWaitForNobody[TX any](t *testing.T, s *site[TX]) {
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

func (s watchedStore) Claim(ctx context.Context, transport string, max outbox.Max) (outbox.Claim, error) {
	c, err := s.Store.Claim(ctx, transport, max)
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

// Many dispatchers, each with the same keys in an order of its own: none is
// chosen as the victim of a deadlock, and relays that work meanwhile find each
// key in order.
func unitsOfWorkDoNotDeadlock[TX any](t *testing.T, s *site[TX]) {
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

// A model is what the outbox should hold, by key, in the order of commits.
type model struct {
	routes   bool // some refusals are of a route
	waiting  map[string][]int
	failures map[order]int  // of a head
	asleep   map[order]bool // heads that nobody may be given
	held     []heldClaim
	open     []*openTx
}

type heldClaim struct {
	outbox.Claim
	rows []order
}

// openTx is a transaction of the caller's own, with keys that nobody else
// dispatches to while it is open.
type openTx struct {
	end  func(commit bool) error
	keys []string
	sent []order
}

// The law of order, under any schedule: transactions that are open at once and
// end in any order, of dispatchers with the lock of a bucket and of such as have
// one of their own for the key, claims that are open at once and are settled in any order,
// refusals for now and for long, outages, an operator, several relays. Each key
// comes in commit order, each message once, what is with one relay is with no
// other, and in the end all have come.
func anyScheduleKeepsTheOrder[TX any](t *testing.T, s *site[TX]) {
	ctx := context.Background()
	locking, unlocked := s.outbox(outbox.Config{}), s.outbox(outbox.Config{Unserialized: true})
	stores := s.relays(2)
	operator, _ := s.Store.(admin.Database)
	_, blocksRoutes := s.Store.(outbox.RouteStore)
	keys := append(sameBucket(3), otherBuckets(2)...)
	next := 0
	rapid.Check(t, often(25, func(rt *rapid.T) {
		defer func() { // after a failure, for the smaller cases that rapid tries
			if operator != nil {
				_, _ = operator.Release(ctx, admin.BlockedQuery{})
			}
			_, _ = visit(s.Store, outbox.DefaultTransport, true)
		}()
		m := &model{waiting: map[string][]int{}, failures: map[order]int{}, asleep: map[order]bool{}}
		// A blocked route holds keys back that have not failed themselves.
		m.routes = blocksRoutes && operator != nil && rapid.Bool().Draw(rt, "routes")
		defer m.abandon(ctx)
		// Each key is dispatched in one way.
		free := map[string]bool{}
		for _, key := range keys {
			free[key] = rapid.Bool().Draw(rt, "unserialized")
		}
		fatal := func(err error) {
			if err != nil {
				rt.Fatal(err)
			}
		}
		// left are the keys to which a dispatch need not wait.
		left := func() (keysLeft []string) {
			for _, key := range keys {
				taken := func(o *openTx) bool {
					return slices.ContainsFunc(o.keys, func(k string) bool {
						return k == key || !free[k] && !free[key] && outbox.Bucket(k, buckets) == outbox.Bucket(key, buckets)
					})
				}
				if !slices.ContainsFunc(m.open, taken) {
					keysLeft = append(keysLeft, key)
				}
			}
			return append(keysLeft, "")
		}
		dispatch := func(tx TX, from []string) (sent []order) {
			for range rapid.IntRange(1, 5).Draw(rt, "messages") {
				o := order{rapid.SampledFrom(from).Draw(rt, "key"), next}
				next++
				var msg any = o
				if m.routes {
					msg = named(rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "name"), o)
				}
				out := locking
				if free[o.Key] {
					out = unlocked
				}
				_, err := out.Dispatch(ctx, tx, msg)
				fatal(err)
				sent = append(sent, o)
			}
			return sent
		}
		claim := func() {
			store := stores[rapid.IntRange(0, len(stores)-1).Draw(rt, "relay")]
			c, err := store.Claim(ctx, outbox.DefaultTransport, outbox.Max{Rows: rapid.IntRange(1, 12).Draw(rt, "rows"), Bytes: 1 << 20})
			fatal(err)
			if len(c.Rows()) > 0 {
				m.check(rt, c)
			}
		}
		settle := func(i int) {
			h := m.held[i]
			m.held = slices.Delete(m.held, i, i+1)
			var published []outbox.ClaimedRow
			var failed []outbox.Failure
			stopped := map[string]bool{}
			for j, row := range h.Rows() {
				o := h.rows[j]
				if stopped[o.Key] {
					continue
				}
				switch rapid.IntRange(0, 5).Draw(rt, "answer") {
				case 0: // refused, for now or for long
					waits := []time.Duration{0, 3 * time.Millisecond}
					if operator != nil {
						waits = append(waits, time.Hour)
					}
					wait := rapid.SampledFrom(waits).Draw(rt, "wait")
					route := m.routes && rapid.IntRange(0, 2).Draw(rt, "route") == 0
					failed = append(failed, outbox.Failure{Row: row, Err: errRefused, RetryIn: wait, Route: route})
					m.failures[o]++
					m.asleep[o] = wait == time.Hour
					stopped[o.Key] = o.Key != ""
				case 1: // an outage
					stopped[o.Key] = o.Key != ""
				default:
					published = append(published, row)
					m.waiting[o.Key] = slices.DeleteFunc(m.waiting[o.Key], func(seq int) bool { return seq == o.Seq })
				}
			}
			fatal(h.Settle(ctx, published, failed))
		}
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0, 1: // a unit of work
				var sent []order
				keep := rapid.IntRange(0, 4).Draw(rt, "keep") > 0
				err := s.Store.InTx(ctx, func(_ context.Context, tx TX) error {
					if sent = dispatch(tx, left()); !keep {
						return errChangedMind
					}
					return nil
				})
				if keep {
					fatal(err)
					m.commit(sent)
				}
			case 2, 3: // a transaction begins, and stays open
				if s.OneWriter || len(m.open) == 3 {
					continue
				}
				tx, err := s.Begin(ctx)
				fatal(err)
				o := &openTx{end: func(commit bool) error {
					if commit {
						return s.Commit(ctx, tx)
					}
					return s.Rollback(ctx, tx)
				}}
				from := left()
				m.open = append(m.open, o)
				o.sent = dispatch(tx, from)
				for _, sent := range o.sent {
					if sent.Key != "" {
						o.keys = append(o.keys, sent.Key)
					}
				}
			case 4: // one of them ends
				if len(m.open) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(m.open)-1).Draw(rt, "open")
				o := m.open[i]
				m.open = slices.Delete(m.open, i, i+1)
				commit := rapid.IntRange(0, 3).Draw(rt, "commit") > 0
				fatal(o.end(commit))
				if commit {
					m.commit(o.sent)
				}
			case 5, 6:
				if len(m.held) < 3 {
					claim()
				}
			case 7, 8:
				if len(m.held) > 0 {
					settle(rapid.IntRange(0, len(m.held)-1).Draw(rt, "claim"))
				}
			case 9: // an operator
				if operator == nil {
					continue
				}
				q := admin.BlockedQuery{Key: rapid.SampledFrom(append([]string{""}, keys...)).Draw(rt, "released")}
				if m.routes && q.Key == "" {
					q.Route = rapid.SampledFrom([]string{"x", "y", ""}).Draw(rt, "released route")
				}
				_, err := operator.Release(ctx, q)
				fatal(err)
				for o := range m.asleep {
					if q.Key == "" || o.Key == q.Key {
						delete(m.asleep, o)
					}
				}
			}
			if left, err := s.Store.Left(ctx, outbox.DefaultTransport); err != nil || left.Pending != m.count() {
				rt.Fatalf("Left = %+v, %v, want %d pending", left, err, m.count())
			}
		}
		for _, o := range m.open {
			fatal(o.end(true))
			m.commit(o.sent)
		}
		m.open = nil
		for len(m.held) > 0 {
			settle(0)
		}
		if operator != nil {
			_, err := operator.Release(ctx, admin.BlockedQuery{})
			fatal(err)
			clear(m.asleep)
		}
		for start := time.Now(); m.count() > 0; {
			if time.Since(start) > patience {
				rt.Fatalf("%v never came", m.waiting)
			}
			claim()
			for _, h := range m.held {
				fatal(h.Settle(ctx, h.Rows(), nil))
				for _, o := range h.rows {
					m.waiting[o.Key] = slices.DeleteFunc(m.waiting[o.Key], func(seq int) bool { return seq == o.Seq })
				}
			}
			m.held = nil
		}
		if left, err := s.Store.Left(ctx, outbox.DefaultTransport); err != nil || left != (outbox.Left{}) {
			rt.Fatalf("Left in the end = %+v, %v", left, err)
		}
	}))
}

func (m *model) commit(sent []order) {
	for _, o := range sent {
		m.waiting[o.Key] = append(m.waiting[o.Key], o.Seq)
	}
}

func (m *model) count() (n int) {
	for _, seqs := range m.waiting {
		n += len(seqs)
	}
	return n
}

// check compares a claim with the model, and holds it.
func (m *model) check(rt *rapid.T, c outbox.Claim) {
	h := heldClaim{Claim: c}
	byOthers := map[order]bool{}
	busy := map[string]bool{}
	for _, other := range m.held {
		for _, o := range other.rows {
			byOthers[o], busy[o.Key] = true, o.Key != ""
		}
	}
	m.held = append(m.held, h) // whatever comes, it will be let go
	at := map[string]int{}
	var rows []order
	for _, row := range c.Rows() {
		o := bodyOf(row.Record)
		rows = append(rows, o)
		switch {
		case busy[o.Key] || byOthers[o]:
			rt.Fatalf("claim of %v: another relay has rows of key %q", rows, o.Key)
		case o.Key == "" && !slices.Contains(m.waiting[""], o.Seq):
			rt.Fatalf("claim of %v: the last is gone, or was never committed", rows)
		case o.Key != "" && (at[o.Key] >= len(m.waiting[o.Key]) || m.waiting[o.Key][at[o.Key]] != o.Seq):
			rt.Fatalf("claim of %v: key %s has %v waiting", rows, o.Key, m.waiting[o.Key])
		case m.routes:
		case m.asleep[o]:
			rt.Fatalf("claim of %v: the last was refused for an hour", rows)
		case row.Failures != m.failures[o]:
			rt.Fatalf("claim of %v: the last has failed %d times, want %d", rows, row.Failures, m.failures[o])
		}
		at[o.Key]++
		byOthers[o] = true
	}
	m.held[len(m.held)-1].rows = rows
}

// abandon lets go what a check that failed has in its hands.
func (m *model) abandon(ctx context.Context) {
	for _, h := range m.held {
		_ = h.Settle(ctx, nil, nil)
	}
	for _, o := range m.open {
		_ = o.end(false)
	}
}
