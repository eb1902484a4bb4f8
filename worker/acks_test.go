package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
)

// Messages that succeed one after another are acknowledged together, and none waits for a
// handler that runs on.
func TestAcknowledgementsGatherForAShortTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.handle(func(_ context.Context, j job) error {
			if j.K == "slow" {
				time.Sleep(10 * time.Second)
			}
			time.Sleep(time.Duration(j.N) * 300 * time.Microsecond)
			return nil
		})
		var calls atomic.Int64
		from := &link{Queue: p.queue, ack: func([]*waybill.Delivery) error { calls.Add(1); return nil }}
		p.send(job{"slow", 1}, job{"a", 1}, job{"b", 2}, job{"c", 3}, job{"d", 4}, job{"e", 5}, job{"f", 6})
		stop := p.start(from)
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		if p.wantBacklog(1); calls.Load() != 1 {
			t.Errorf("%d calls acknowledged 6 messages of 2 ms, want one", calls.Load())
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if p.wantBacklog(0); calls.Load() != 2 {
			t.Errorf("%d calls acknowledged all, want 2", calls.Load())
		}
		noError(t, stop())
	})
}

// The last message in flight is acknowledged at once.
func TestLastAcknowledgementDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.handle(func(context.Context, job) error { return nil })
		p.send(job{"a", 1})
		stop := p.start(p.queue)
		synctest.Wait() // no time passes
		p.wantBacklog(0)
		noError(t, stop())
	})
}
