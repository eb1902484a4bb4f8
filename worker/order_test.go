package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
)

// give is a link whose Retry and Release can fail.
type give struct {
	link
	retry   func() error
	release func() error
}

func (g *give) Retry(ctx context.Context, d *waybill.Delivery, delay time.Duration) error {
	if g.retry != nil {
		if err := g.retry(); err != nil {
			return err
		}
	}
	return g.Queue.Retry(ctx, d, delay)
}

func (g *give) Release(ctx context.Context, ds ...*waybill.Delivery) error {
	if g.release != nil {
		if err := g.release(); err != nil {
			return err
		}
	}
	return g.Queue.Release(ctx, ds...)
}

// A message that is being received while its key fails is held back, too.
func TestMessageInFlightDoesNotOvertakeItsFailedHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		slow := &link{Queue: p.queue}
		slow.receive = func(ctx context.Context, max int) ([]*waybill.Delivery, error) {
			ds, err := p.queue.Receive(ctx, 1)
			if len(ds) > 0 && string(ds[0].Record.Body) == `{"K":"a","N":2}` && ds[0].Failures == 0 {
				time.Sleep(2 * time.Second) // the answer of the database is delayed
			}
			return ds, err
		}
		failed := false
		p.cfg.Retry = waybill.Backoff{Delay: 10 * time.Second, Jitter: -1}
		p.handle(func(_ context.Context, j job) error {
			if j.N == 1 && !failed {
				failed = true
				time.Sleep(time.Second)
				return errDeclined
			}
			return nil
		})
		p.send(job{"a", 1}, job{"a", 2}, job{"a", 3})
		stop := p.start(slow)
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantDone("a1 a2 a3")
	})
}

func TestFollowersWaitWhenARetryCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		g := &give{link: link{Queue: p.queue}}
		fails := 1
		g.retry = func() error {
			if fails--; fails >= 0 {
				return waybill.ErrUnavailable
			}
			return nil
		}
		failed := false
		p.handle(func(_ context.Context, j job) error {
			if j.N == 1 && !failed {
				failed = true
				return errDeclined
			}
			return nil
		})
		p.send(job{"a", 1}, job{"a", 2}, job{"a", 3})
		stop := p.start(g)
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantDone("a1 a2 a3")
	})
}

func TestFollowersKeepTheirOrderWhenTheirReleaseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Concurrency, p.cfg.Prefetch = 1, 2
		g := &give{link: link{Queue: p.queue}}
		fails := 1
		g.release = func() error {
			if fails--; fails >= 0 {
				return waybill.ErrUnavailable
			}
			return nil
		}
		failed := false
		p.handle(func(_ context.Context, j job) error {
			if j.N == 1 && !failed {
				failed = true
				return errDeclined
			}
			return nil
		})
		p.send(job{"a", 1}, job{"a", 2}, job{"a", 3})
		stop := p.start(g)
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantDone("a1 a2 a3")
	})
}

// The database is unavailable for a lease time; another worker gets the head.
func TestFollowersKeepTheirOrderWhenTheHeadsLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Concurrency, p.cfg.Prefetch = 1, 2
		var out atomic.Bool
		out.Store(true)
		l := &link{Queue: p.queue}
		l.renew = func(ds []*waybill.Delivery) []*waybill.Delivery {
			if out.Load() {
				return nil
			}
			lost, _ := p.queue.Renew(t.Context(), ds...)
			return lost
		}
		p.handle(func(ctx context.Context, j job) error {
			if j.N == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		p.send(job{"a", 1}, job{"a", 2}, job{"a", 3}, job{"a", 4})
		stop := p.start(l)
		time.Sleep(16 * time.Second)
		other := p.db.Queue("jobs")
		ds, err := other.Receive(t.Context(), 1)
		noError(t, err)
		out.Store(false)
		time.Sleep(5 * time.Second)
		p.done = append(p.done, "a1")
		noError(t, other.Ack(t.Context(), ds...))
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantDone("a1 a2 a3 a4")
	})
}
