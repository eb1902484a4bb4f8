package worker_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

func TestSlowReceiverDoesNotHangTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Drain = time.Second
		l := &link{Queue: p.queue}
		l.receive = func(ctx context.Context, max int) ([]*waybill.Delivery, error) {
			time.Sleep(10 * time.Second) // a busy database
			return p.queue.Receive(context.WithoutCancel(ctx), max)
		}
		p.send(job{"a", 1})
		p.handle(func(context.Context, job) error { return nil })
		stop := p.start(l)
		synctest.Wait()
		ended := make(chan error, 1)
		go func() { ended <- stop() }()
		select {
		case err := <-ended:
			noError(t, err)
		case <-time.After(time.Hour):
			t.Error("Run has not returned after an hour")
		}
	})
}

func TestBusyWorkerIsNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Idle, p.cfg.Concurrency = 10*time.Second, 1
		var causes []error
		p.handle(func(ctx context.Context, j job) error {
			select {
			case <-ctx.Done():
				causes = append(causes, context.Cause(ctx))
				return ctx.Err()
			case <-time.After(time.Minute):
				return nil
			}
		})
		p.send(job{"a", 1}, job{"b", 1})
		noError(t, p.run(p.queue))
		p.wantDone("a1 b1")
		if len(causes) > 0 {
			t.Errorf("contexts ended: %v", causes)
		}
	})
}

func TestHandlersOwnErrorIsNotTakenForTheWorkers(t *testing.T) {
	for _, own := range []error{waybill.ErrLeaseLost, worker.ErrDrained} {
		synctest.Test(t, func(t *testing.T) {
			p := newFixture(t)
			n := 0
			p.handle(func(context.Context, job) error {
				if n++; n == 1 {
					return fmt.Errorf("of another queue: %w", own)
				}
				return nil
			})
			p.send(job{"a", 1})
			stop := p.start(p.queue)
			time.Sleep(time.Minute)
			noError(t, stop())
			if got := len(p.of(waybill.Retrying)); got != 1 {
				t.Errorf("%v: %d retries counted, want 1", own, got)
			}
		})
	}
}

// A key whose handler hangs takes a share of the prefetch, not all of it.
func TestSlowKeyLeavesRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Drain = time.Second
		p.handle(func(ctx context.Context, j job) error {
			if j.K == "slow" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		var jobs []job
		for n := range 60 {
			jobs = append(jobs, job{"slow", n})
		}
		p.send(append(jobs, job{"other", 1})...)
		stop := p.start(p.queue)
		time.Sleep(10 * time.Second)
		noError(t, stop())
		p.wantDone("other1")
	})
}
