package waypg_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

func TestRouteThatLeadsNowhereIsBlockedAsOne(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		// x leads nowhere; k0 to k4 have both names in turns, and there are
		// messages without key.
		var msgs []any
		for seq := range 6 {
			for key := range 5 {
				msgs = append(msgs, named([]string{"y", "x"}[seq/2%2], order{fmt.Sprint("k", key), seq}))
			}
			msgs = append(msgs, named("x", order{"", seq}), named("y", order{"", 100 + seq}), named("y", order{"free", seq}))
		}
		put(t, db, raw(), msgs...)
		broken := true
		var mu sync.Mutex
		sink := &recorder{refuse: func(rec *waybill.Record) error {
			mu.Lock()
			defer mu.Unlock()
			if broken && rec.Name == "x" {
				return &outbox.UnroutableError{Exchange: "e", RoutingKey: "x", Reason: "NO_ROUTE"}
			}
			return nil
		}}
		cfg := outbox.RelayConfig{Retry: noRetry}
		drain(t, db, sink, cfg)
		want := map[string]int{"k0": 2, "k1": 2, "k2": 2, "k3": 2, "k4": 2, "free": 6, "": 6}
		if diff := cmp.Diff(want, perKey(t, sink.got)); diff != "" {
			t.Errorf("published (-want +got):\n%s", diff)
		}
		blocked, err := db.Blocked(t.Context(), "", 0)
		if err != nil || len(blocked) != 1 || blocked[0].Route != "x" || blocked[0].Waiting != 5*2+6 {
			t.Errorf("Blocked = %+v, %v, want the route x alone", blocked, err)
		}
		if left, err := db.Backlog(t.Context(), "default"); err != nil || left.Blocked != left.Pending || left.Pending != 5*4+6 {
			t.Errorf("Backlog = %+v, %v", left, err)
		}
		// New messages wait behind waiting ones of their key, or for their blocked route.
		put(t, db, raw(), named("y", order{"k0", 6}), named("y", order{"free", 6}), named("x", order{"new", 0}))
		drain(t, db, sink, cfg)
		if got := perKey(t, sink.got); got["k0"] != 2 || got["free"] != 7 || got["new"] != 0 {
			t.Errorf("published %v, want k0 and new to wait", got)
		}
		mu.Lock()
		broken = false
		mu.Unlock()
		if n, err := db.Release(t.Context(), admin.BlockedQuery{Route: "x"}); err != nil || n != 1 {
			t.Errorf("Release = %d, %v", n, err)
		}
		drain(t, db, sink, cfg)
		want = map[string]int{"k0": 7, "k1": 6, "k2": 6, "k3": 6, "k4": 6, "free": 7, "new": 1, "": 12}
		if diff := cmp.Diff(want, perKey(t, sink.got)); diff != "" {
			t.Errorf("published after the cure (-want +got):\n%s", diff)
		}
		once := map[waybill.MessageID]bool{}
		for _, id := range sink.ids {
			if once[id] {
				t.Errorf("message %s came twice", id)
			}
			once[id] = true
		}
		if blocked, err := db.Blocked(t.Context(), "", 0); err != nil || len(blocked) != 0 {
			t.Errorf("Blocked in the end = %+v, %v", blocked, err)
		}
	})
}

// A single message with nowhere to go is its key's affair, and a route that
// works again frees it.
func TestFewUnroutableMessagesBlockTheirKeys(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		put(t, db, raw(), named("x", order{"a", 0}), named("x", order{"b", 0}))
		sink := &recorder{refuse: func(*waybill.Record) error { return &outbox.UnroutableError{Reason: "NO_ROUTE"} }}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		relay := newRelay(t, db, sink, outbox.RelayConfig{Retry: noRetry, Workers: 1})
		done := make(chan error, 1)
		go func() { done <- relay.Run(ctx) }()
		blocked := func(n int) func() bool {
			return func() bool {
				got, err := db.Blocked(t.Context(), "", 0)
				return err == nil && len(got) == n && got[0].Waiting > 0
			}
		}
		await(t, "two keys are blocked", 60*time.Second, blocked(2))
		put(t, db, raw(), named("x", order{"c", 0}))
		await(t, "the route is blocked, too", 60*time.Second, blocked(3))
		if got, err := db.Blocked(t.Context(), "", 0); err != nil || got[0].Route != "x" {
			t.Errorf("Blocked = %+v, %v, want the route first", got, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if _, err := db.Release(t.Context(), admin.BlockedQuery{Route: "x"}); err != nil {
			t.Fatal(err)
		}
		well := &recorder{}
		drain(t, db, well, outbox.RelayConfig{})
		if len(well.got) != 3 {
			t.Errorf("%v came, want all three: the keys were blocked for the route's sake", well.got)
		}
	})
}

// A cutting broker ends the connection, with all that is in flight, for one
// message, or for every one.
type cutting struct {
	recorder
	culprit func(o order) bool
}

func (b *cutting) Publish(ctx context.Context, items []outbox.Item, results chan<- outbox.Result) {
	cut := false
	for _, item := range items {
		cut = cut || b.culprit(bodyOf(item.Record))
	}
	if !cut {
		b.recorder.Publish(ctx, items, results)
		return
	}
	for _, item := range items {
		results <- outbox.Result{Seq: item.Seq, Err: &outbox.ConnectionLostError{Err: errors.New("connection reset by peer")}}
	}
}

func TestMessageThatCutsTheConnectionIsFound(t *testing.T) {
	t.Parallel()
	for name, culprits := range map[string][]order{"first": {{"k0", 0}}, "in the middle": {{"k150", 0}}, "last": {{"k299", 0}}, "two": {{"k7", 0}, {"", 3}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, testserver.Postgres, waypg.Config{})
			var msgs []any
			for i := range 300 {
				msgs = append(msgs, order{fmt.Sprint("k", i), 0}, order{fmt.Sprint("k", i), 1})
			}
			for i := range 5 {
				msgs = append(msgs, order{"", i})
			}
			put(t, db, outbox.Config{}, msgs...)
			b := &cutting{culprit: func(o order) bool {
				for _, c := range culprits {
					if o == c {
						return true
					}
				}
				return false
			}}
			stop := relaying(t, db, b, outbox.RelayConfig{Retry: noRetry, PollMax: 20 * time.Millisecond})
			await(t, name+": the culprits are blocked", 15*time.Second, func() bool {
				got, err := db.Blocked(t.Context(), "", 0)
				return err == nil && len(got) == len(culprits)
			})
			want := 605
			for _, c := range culprits {
				want -= 1
				if c.Key != "" {
					want-- // its follower
				}
			}
			await(t, name+": the others come", 15*time.Second, func() bool { return len(b.all()) == want })
			stop()
			blocked, err := db.Blocked(t.Context(), "", 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, got := range blocked {
				found := false
				for _, c := range culprits {
					found = found || got.Key == c.Key
				}
				if !found {
					t.Errorf("%s: %s was blamed", name, got.Key)
				}
			}
		})
	}
}

// A broker that is down cuts everything, time and again, and no message is to
// blame.
func TestOutageBlamesNoMessage(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 40} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			db := open(t, testserver.Postgres, waypg.Config{})
			var msgs []any
			for i := range n {
				msgs = append(msgs, order{fmt.Sprint("k", i), 0})
			}
			put(t, db, outbox.Config{}, msgs...)
			var mu sync.Mutex
			tries := 0
			b := &cutting{culprit: func(order) bool {
				mu.Lock()
				defer mu.Unlock()
				tries++
				return tries < 9
			}}
			stop := relaying(t, db, b, outbox.RelayConfig{Retry: noRetry, PollMin: time.Millisecond, PollMax: 2 * time.Millisecond})
			await(t, "all come after the outage", 60*time.Second, func() bool { return len(b.all()) == n })
			stop()
			if blocked, err := db.Blocked(t.Context(), "", 0); err != nil || len(blocked) != 0 {
				t.Errorf("Blocked = %+v, %v", blocked, err)
			}
		})
	}
}
