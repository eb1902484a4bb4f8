package worker_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

type smsg struct{ N int }

func (smsg) MessageName() string { return "s.msg" }

// taken is a receiver that delivers two messages of a key once, and reports the lease
// of the second as lost at the first renewal.
type taken struct {
	mu       sync.Mutex
	ds       []*waybill.Delivery
	lent     bool
	released []*waybill.Delivery
}

func (r *taken) Receive(ctx context.Context, _ int) ([]*waybill.Delivery, error) {
	r.mu.Lock()
	first := !r.lent
	r.lent = true
	r.mu.Unlock()
	if first {
		return r.ds, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}
func (r *taken) Ack(context.Context, ...*waybill.Delivery) error               { return nil }
func (r *taken) Retry(context.Context, *waybill.Delivery, time.Duration) error { return nil }
func (r *taken) LeaseTime() time.Duration                                      { return 3 * time.Second }
func (r *taken) Suspend(context.Context) error                                 { return nil }
func (r *taken) Release(_ context.Context, ds ...*waybill.Delivery) error {
	r.released = append(r.released, ds...)
	return nil
}
func (r *taken) Renew(_ context.Context, ds ...*waybill.Delivery) (lost []*waybill.Delivery, err error) {
	for _, d := range ds {
		if d == r.ds[1] {
			lost = append(lost, d)
		}
	}
	return lost, nil
}

// Kills: a message whose lease was lost before it began is handled, or kept from others.
func TestMessageWhoseLeaseIsLostBeforeItBeginsDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := waybill.NewBus("b")
		var ran []int
		waybill.Handle(bus, "h", func(ctx context.Context, m smsg) error {
			ran = append(ran, m.N)
			time.Sleep(4 * time.Second) // in the first one a renewal comes, and the second one's lease ends
			return nil
		})
		r := &taken{}
		for n := range 2 {
			r.ds = append(r.ds, &waybill.Delivery{Record: &waybill.Record{ID: waybill.MessageID{byte(n + 1)}, Name: "s.msg", Key: "k", Body: []byte(`{"N":` + string(rune('1'+n)) + `}`)}})
		}
		w, err := worker.New(bus, r, worker.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := w.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if len(ran) != 1 || ran[0] != 1 {
			t.Errorf("ran %v, want [1]: the second was somebody else's before it began", ran)
		}
		if len(r.released) != 1 || r.released[0] != r.ds[1] {
			t.Errorf("released %v, want the second: the transport answers, and without it the message would come again as redelivered", r.released)
		}
	})
}

// A cutOff receiver has delivered its messages when the network begins to swallow packets.
type cutOff struct{ taken }

// lend has n messages without a key delivered.
func (c *cutOff) lend(n int) {
	for i := range n {
		c.ds = append(c.ds, &waybill.Delivery{Record: &waybill.Record{ID: waybill.MessageID{byte(i + 1)}, Name: "unkeyed", Body: []byte(`{}`)}})
	}
}

func (*cutOff) Renew(ctx context.Context, _ ...*waybill.Delivery) ([]*waybill.Delivery, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (*cutOff) Release(ctx context.Context, _ ...*waybill.Delivery) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestWorkerMovesWhileItsDatabaseIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newFixture(t), &cutOff{}
		p.cfg.Concurrency, p.cfg.Drain = 1, time.Second
		waybill.Handle(p.bus, "h", func(ctx context.Context, _ unkeyed) error { <-ctx.Done(); return ctx.Err() })
		r.lend(20)
		w, stop, ended := p.begin(r)
		time.Sleep(time.Minute)
		if err := w.Alive(15 * time.Second); err != nil {
			t.Errorf("Alive = %v", err)
		}
		stop()
		start := time.Now()
		noError(t, <-ended)
		if took := time.Since(start); took > 12*time.Second {
			t.Errorf("stopped after %v", took)
		}
	})
}
