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
	mu   sync.Mutex
	ds   []*waybill.Delivery
	lent bool
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
func (r *taken) Release(context.Context, ...*waybill.Delivery) error           { return nil }
func (r *taken) LeaseTime() time.Duration                                      { return 3 * time.Second }
func (r *taken) Suspend(context.Context) error                                 { return nil }
func (r *taken) Renew(_ context.Context, ds ...*waybill.Delivery) (lost []*waybill.Delivery, err error) {
	for _, d := range ds {
		if d == r.ds[1] {
			lost = append(lost, d)
		}
	}
	return lost, nil
}

// Kills: a message whose lease was lost before it began is handled.
func TestMessageWhoseLeaseIsLostBeforeItBeginsDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := waybill.NewBus("b")
		var ran []int
		waybill.Handle(bus, "h", func(ctx context.Context, m smsg) error {
			ran = append(ran, m.N)
			time.Sleep(2 * time.Second) // a renewal falls into the first one
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
	})
}
