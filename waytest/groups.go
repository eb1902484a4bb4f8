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
	"github.com/waybill-go/waybill/worker"
)

// A worker whose handlers fail at random: no message begins before the one ahead
// of it in its key has committed.
func groupsKeepTheOrderOfKeys[TX any](t *testing.T, s *fixture[TX]) {
	if s.Queue == nil {
		t.Skip("there are no queues")
	}
	const keys, each = 6, 15
	queue, err := s.Queue("orders", 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range keys * each {
		rec := arrival(t, order{fmt.Sprint("k", i%keys), i / keys})
		if err := queue.Send(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
	}
	done := &progress{byKey: map[string]int{}, stopAt: keys * each}
	store := &counted[TX]{Store: s.inbox()}
	bus := waybill.NewBus("main")
	inbox.Handle(bus, store, "h", func(ctx context.Context, tx TX, m order) error {
		if n := done.of(m.Key); n != m.Seq {
			t.Errorf("key %s: message %d began when %d were done", m.Key, m.Seq, n)
		}
		if err := s.Insert(ctx, tx, fmt.Sprint("h ", m.Key, " ", m.Seq)); err != nil {
			return err
		}
		if rand.IntN(6) == 0 {
			return errChangedMind
		}
		return nil
	}, inbox.Group(4))
	w, err := worker.New(bus, queue, worker.Config{Concurrency: keys, MaxRetries: 1000, Observer: done, Retry: waybill.Backoff{Delay: time.Millisecond, MaxDelay: time.Millisecond, Jitter: -1}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	done.stop = cancel
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
	for i := range keys {
		if n := done.of(fmt.Sprint("k", i)); n != each {
			t.Errorf("key k%d: %d messages were done, want %d", i, n, each)
		}
	}
	texts, err := s.Texts(context.Background())
	if err != nil || len(texts) != keys*each {
		t.Errorf("%d effects, %v, want %d", len(texts), err, keys*each)
	}
}

// progress counts the messages that a worker has handled, and stops it at stopAt.
type progress struct {
	stop   func()
	stopAt int

	mu    sync.Mutex
	byKey map[string]int
	all   int
}

// Observe implements waybill.Observer.
func (p *progress) Observe(_ context.Context, e waybill.Event) {
	if e.Kind != waybill.Handled || e.Err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byKey[e.Key]++
	if p.all++; p.all == p.stopAt {
		p.stop()
	}
}

func (p *progress) of(key string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byKey[key]
}

func groupMemberWhoseContextEnds[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	for i, when := range []string{"before", "inside", "during a statement", "at a deadline during a statement"} {
		from := 4 * i
		h := s.handling()
		h.attempts.Store(int64(1000 * i))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		want := context.Canceled
		if when == "at a deadline during a statement" {
			want = context.DeadlineExceeded
		}
		store := h.group(4, func(handling context.Context, tx TX, m order) error {
			switch {
			case m.Seq != from+1:
			case want == context.DeadlineExceeded:
				for handling.Err() == nil {
					_ = s.Insert(handling, tx, "h after 1") // until it cuts one off
				}
			default:
				cancel()
				if when == "during a statement" {
					_ = s.Insert(handling, tx, "h after 1")
				}
			}
			_, err := out.Dispatch(handling, tx, m)
			return err
		})
		recs := arrivals(t, from, 4)
		switch when {
		case "before":
			store.begins = cancel // the group is full
		case "at a deadline during a statement":
			ctx, cancel = context.WithTimeout(ctx, time.Second)
			defer cancel()
		}
		failed := make(chan error, 1)
		go func() { failed <- h.bus.HandleRecord(ctx, recs[1], "events", 0) }()
		noErrors(t, when, h.together(recs[0], recs[2], recs[3]))
		if err := <-failed; !errors.Is(err, want) || errors.Is(err, waybill.ErrUnavailable) {
			t.Errorf("%s: the message whose context ended = %v, want %v", when, err, want)
		}
		var handled []int
		for j := range i + 1 {
			handled = append(handled, 4*j, 4*j+2, 4*j+3)
		}
		h.wantEffects(when, effects(handled...)...)
		s.wantWaiting(when, orders(handled...)...)
	}
}
