package worker_test

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

// An askedStore answers for its retry queue by a function.
type askedStore struct {
	worker.Store
	contains func(ctx context.Context) error
}

func (s *askedStore) RetryQueue(transport string) (worker.RetryQueue, error) {
	q, err := s.Store.RetryQueue(transport)
	return askedQueue{q, s}, err
}

type askedQueue struct {
	worker.RetryQueue
	store *askedStore
}

func (q askedQueue) Contains(ctx context.Context, ds ...*waybill.Delivery) ([]bool, error) {
	if err := q.store.contains(ctx); err != nil {
		return nil, err
	}
	return q.RetryQueue.Contains(ctx, ds...)
}

// A server that vanished answers nothing until TCP gives up, a quarter of an hour later.
func TestStoreThatDoesNotAnswerIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		vanished := true
		p.cfg.Store = &askedStore{p.db, func(ctx context.Context) error {
			if vanished {
				vanished = false
				<-ctx.Done()
				return waybill.ErrUnavailable
			}
			return nil
		}}
		p.handle(func(context.Context, job) error { return nil })
		stop := p.start(p.queue)
		p.send(job{"a", 1})
		time.Sleep(20 * time.Second)
		p.wantDone("a1")
		noError(t, stop())
	})
}

func TestStopWhileTheStoreIsAskedIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		log := p.logTo()
		p.cfg.Store = &askedStore{p.db, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		p.handle(func(context.Context, job) error { return nil })
		stop := p.start(p.queue)
		p.send(job{"a", 1})
		time.Sleep(time.Second)
		noError(t, stop())
		if bytes.Contains(log.Bytes(), []byte("WARN")) {
			t.Errorf("an orderly stop logs %s", log)
		}
		p.wantBacklog(1)
	})
}

// Leases that are not renewed meanwhile pass to another worker, and the messages run in both.
func TestLeasesAreRenewedWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, other := newFixture(t), &taken{}
		var back atomic.Bool
		p.cfg.Store = &askedStore{p.db, func(context.Context) error {
			if !back.Load() {
				return waybill.ErrUnavailable
			}
			return nil
		}}
		p.handle(func(context.Context, job) error { return nil })
		for n := range 2 { // the second is lost at the first renewal
			other.ds = append(other.ds, &waybill.Delivery{Record: &waybill.Record{ID: waybill.MessageID{byte(n + 1)}, Name: "job", Key: string(rune('a' + n)), Body: []byte(`{"K":"` + string(rune('a'+n)) + `","N":1}`)}})
		}
		stop := p.start(other)
		time.Sleep(10 * time.Second)
		back.Store(true)
		time.Sleep(10 * time.Second)
		noError(t, stop())
		p.wantDone("a1")
	})
}

// Outcomes that are there when the time for handlers is over are settled as others are: the
// calls for those before them may have taken all of it.
func TestSlowReleasesLeaveNoOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20
		p := newFixture(t)
		p.cfg.Concurrency, p.cfg.Drain = n, time.Second
		waybill.Handle(p.bus, "do", func(ctx context.Context, _ unkeyed) error { <-ctx.Done(); return ctx.Err() })
		for i := range n {
			_, err := p.bus.Dispatch(t.Context(), unkeyed{i})
			noError(t, err)
		}
		l := &link{Queue: p.queue}
		l.release = func() { time.Sleep(300 * time.Millisecond) }
		stop := p.start(l)
		time.Sleep(time.Second)
		noError(t, stop())
		if got := p.failuresLeft(); len(got) != n {
			t.Errorf("%d messages were released, want %d", len(got), n)
		}
	})
}

// A patient receiver is cut off, and its leases are long.
type patient struct{ cutOff }

func (*patient) LeaseTime() time.Duration { return time.Hour }

// Whoever asks is answered between two releases, however many there are.
func TestWorkerWithManyReleasesIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20
		p, r := newFixture(t), &patient{}
		p.cfg.Concurrency, p.cfg.Drain = n, time.Second
		waybill.Handle(p.bus, "h", func(ctx context.Context, _ unkeyed) error { <-ctx.Done(); return ctx.Err() })
		r.lend(n)
		w, stop, ended := p.begin(r)
		time.Sleep(time.Second)
		stop()
		for len(ended) == 0 {
			time.Sleep(time.Second + 13*time.Millisecond) // never as a release ends
			if err := w.Alive(5 * time.Second); err != nil {
				t.Error(err)
			}
		}
		noError(t, <-ended)
	})
}

// The network swallows packets while a worker drains: it is alive all the same.
func TestWorkerThatCannotReleaseIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newFixture(t), &cutOff{}
		p.cfg.Concurrency, p.cfg.Drain = 1, time.Minute
		waybill.Handle(p.bus, "h", func(ctx context.Context, _ unkeyed) error { time.Sleep(40 * time.Second); return errDeclined })
		r.lend(3)
		w, stop, ended := p.begin(r)
		time.Sleep(time.Second)
		stop()
		for range 30 {
			time.Sleep(time.Second)
			if err := w.Alive(5 * time.Second); err != nil {
				t.Fatal(err)
			}
		}
		<-ended
	})
}
