package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/worker"
)

// prioritized starts a worker with shared slots on a queue of its own, whose handlers take a
// second and count in running.
func prioritized(t *testing.T, slots *worker.Slots, priority int, running *atomic.Int32) (p *fixture, stop func() error) {
	p = newFixture(t)
	p.cfg.Slots, p.cfg.Priority, p.cfg.Concurrency = slots, priority, 4
	p.handle(func(context.Context, job) error {
		if n := running.Add(1); n > 2 {
			t.Errorf("%d handlers run on two slots", n)
		}
		time.Sleep(time.Second)
		running.Add(-1)
		return nil
	})
	return p, p.start(p.queue)
}

func TestFreeSlotGoesToTheHighestPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots, err := worker.NewSlots(2)
		noError(t, err)
		var running atomic.Int32
		low, stopLow := prioritized(t, slots, 0, &running)
		high, stopHigh := prioritized(t, slots, 1, &running)
		for _, k := range []string{"a", "b", "c", "d", "e", "f"} {
			low.send(job{k, 1})
		}
		time.Sleep(500 * time.Millisecond)
		for _, k := range []string{"a", "b", "c"} {
			high.send(job{k, 1})
		}
		handled := func(after time.Duration, wantLow, wantHigh int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			low.mu.Lock()
			defer low.mu.Unlock()
			high.mu.Lock()
			defer high.mu.Unlock()
			if len(low.done) != wantLow || len(high.done) != wantHigh {
				t.Errorf("handled %v and %v, want %d and %d", low.done, high.done, wantLow, wantHigh)
			}
		}
		handled(time.Second, 2, 0)   // at 1.5 s: those that ran before
		handled(time.Second, 2, 2)   // at 2.5 s: the high ones came first
		handled(time.Second, 3, 3)   // and what they leave is the low one's
		noError(t, stopLow())        // what waits for a slot does not begin any more
		handled(3*time.Second, 5, 3) // at 3 s two more had begun
		low.wantBacklog(1)
		noError(t, stopHigh())
	})
	if _, err := worker.NewSlots(0); err == nil {
		t.Error("no slots were accepted")
	}
}
