package waytest

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// relays returns n stores on the harness, as those of as many processes where it
// can be.
func (s *fixture[TX]) relays(n int) []Store[TX] {
	s.t.Helper()
	stores := []Store[TX]{s.Store}
	for len(stores) < n {
		store := s.Store
		if s.Another != nil {
			store = s.Another(s.t)
		}
		stores = append(stores, store)
	}
	return stores
}

// drain relays all that is due.
func (s *fixture[TX]) drain(to outbox.Publisher, cfg outbox.RelayConfig) {
	s.t.Helper()
	cfg.Drain = true
	relay, err := outbox.NewRelay(s.Store, to, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := relay.Run(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

// relaying runs a relay until the returned function is called, or the case ends.
func (s *fixture[TX]) relaying(store outbox.Store, to outbox.Publisher, cfg outbox.RelayConfig) (stop func()) {
	s.t.Helper()
	relay, err := outbox.NewRelay(store, to, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("relay: %v", err)
		}
	})
	s.t.Cleanup(stop)
	return stop
}

// recorder is a publisher that records each message, unless refuse returns an
// error for it.
type recorder struct {
	NoTraits
	refuse func(rec *waybill.Record) error

	mu  sync.Mutex
	got []order
	ids []waybill.MessageID
}

// Publish implements outbox.Publisher.
func (r *recorder) Publish(_ context.Context, items []outbox.Item, results chan<- outbox.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, item := range items {
		var err error
		if r.refuse != nil {
			err = r.refuse(item.Record)
		}
		if err == nil {
			r.got = append(r.got, bodyOf(item.Record))
			r.ids = append(r.ids, item.Record.ID)
		}
		results <- outbox.Result{Seq: item.Seq, Err: err}
	}
}

func (r *recorder) all() []order {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// perKey counts the messages of each key, and fails unless they came in order
// from 0.
func perKey(t testing.TB, got []order) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, o := range got {
		if o.Key != "" && o.Seq != n[o.Key] {
			t.Errorf("key %q: %d came, want %d", o.Key, o.Seq, n[o.Key])
		}
		n[o.Key]++
	}
	return n
}
