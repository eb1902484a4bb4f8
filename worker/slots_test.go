package worker_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill/worker"
)

// prioritized starts a worker with shared slots on a new queue. Its handlers take a second and
// count in running.
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
		handled(time.Second, 2, 0)   // at 1.5 s: the handlers that ran before
		handled(time.Second, 2, 2)   // at 2.5 s: the high ones came first
		handled(time.Second, 3, 3)   // and the rest of the slots is the low one's
		noError(t, stopLow())        // messages without a slot do not begin any more
		handled(3*time.Second, 5, 3) // at 3 s two more had begun
		low.wantBacklog(1)
		noError(t, stopHigh())
	})
	if _, err := worker.NewSlots(0); err == nil {
		t.Error("no slots were accepted")
	}
}

// A saturated worker has messages all the time.
type saturated struct {
	priority, weight, concurrency int
	from                          time.Duration // when its messages arrive
	takes                         time.Duration // how long its handler runs
	only                          int           // how many messages it has; zero means enough
}

// share runs workers on shared slots for a time, and returns how many messages each has begun.
func share(t *testing.T, n int, length time.Duration, workers ...saturated) (begun []int) {
	synctest.Test(t, func(t *testing.T) {
		slots, err := worker.NewSlots(n)
		noError(t, err)
		var mu sync.Mutex
		var stops []func() error
		counts, running, all := make([]int, len(workers)), make([]int, len(workers)), 0
		for i, w := range workers {
			p := newFixture(t)
			p.cfg.Slots, p.cfg.Priority, p.cfg.Weight, p.cfg.Concurrency = slots, w.priority, w.weight, w.concurrency
			count := func(begins, by int) {
				mu.Lock()
				defer mu.Unlock()
				counts[i] += begins
				running[i] += by
				if all += by; all > n || running[i] > w.concurrency {
					t.Errorf("%d handlers run on %d slots, %d of them of a worker with %d", all, n, running[i], w.concurrency)
				}
			}
			p.handle(func(context.Context, job) error {
				count(1, 1)
				time.Sleep(w.takes)
				count(0, -1)
				return nil
			})
			stops = append(stops, p.start(p.queue))
			time.AfterFunc(w.from, func() {
				for k := range cmp.Or(w.only, 2*n*(1+int(length/w.takes))) {
					p.send(job{fmt.Sprint(k), 1})
				}
			})
		}
		time.Sleep(length - time.Millisecond)
		synctest.Wait()
		mu.Lock()
		begun = slices.Clone(counts)
		mu.Unlock()
		for _, stop := range stops {
			noError(t, stop())
		}
	})
	return begun
}

// lead is how far the first worker is ahead of the second, in messages of weight 1.
func lead(begun []int, workers []saturated, first, second int) float64 {
	return float64(begun[first])/float64(workers[first].weight) - float64(begun[second])/float64(workers[second].weight)
}

// At any time two workers differ by one message of each at most. All begin at once, when one
// of a higher priority ends.
func TestSlotsAreSharedByWeight(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(rt, "slots")
		workers := []saturated{{priority: 1, weight: 1, concurrency: n, takes: time.Second, only: n}}
		for range rapid.IntRange(2, 4).Draw(rt, "workers") {
			workers = append(workers, saturated{
				weight: rapid.IntRange(1, 8).Draw(rt, "weight"), concurrency: n + rapid.IntRange(0, 3).Draw(rt, "more"),
				takes: time.Duration(rapid.IntRange(1, 4).Draw(rt, "takes")) * time.Second, from: time.Millisecond,
			})
		}
		begun := share(t, n, time.Duration(rapid.IntRange(2, 120).Draw(rt, "seconds"))*time.Second, workers...)
		for i := 1; i < len(workers); i++ {
			for j := 1; j < len(workers); j++ {
				if most := 1/float64(workers[i].weight) + 1/float64(workers[j].weight); lead(begun, workers, i, j) > most+1e-9 {
					rt.Errorf("of %v messages those of workers %d and %d are not shared by weight", begun, i, j)
				}
			}
		}
	})
}

func TestSlotsOfAPriorityAreAllItsOwn(t *testing.T) {
	for n := 1; n <= 3; n++ {
		workers := []saturated{
			{weight: 1, concurrency: n, takes: time.Second},
			{priority: 1, weight: 3, concurrency: n, takes: time.Second, from: 9500 * time.Millisecond},
			{priority: 1, weight: 1, concurrency: n, takes: time.Second, from: 9500 * time.Millisecond},
		}
		got := share(t, n, 60*time.Second, workers...)
		if got[0] != 10*n || got[1]+got[2] != 50*n || math.Abs(lead(got, workers, 1, 2)) > 4./3 {
			t.Errorf("on %d slots %v messages have begun, want %d of the low worker, and 3 to 1 of the others", n, got, 10*n)
		}
	}
}

// A worker that has been idle does not make up for it, and one that has had all slots is not
// made to wait.
func TestSlotsOwedToAnIdleWorkerAreForgotten(t *testing.T) {
	got := share(t, 1, 100*time.Second,
		saturated{concurrency: 1, takes: time.Second},
		saturated{concurrency: 1, takes: time.Second, from: 80 * time.Second})
	if math.Abs(float64(got[0]-90)) > 1 || math.Abs(float64(got[1]-10)) > 1 {
		t.Errorf("%v messages have begun, want 90 and 10", got)
	}
}

// A worker with fewer handlers than its share leaves the rest to the others.
func TestSlotsThatAWorkerCannotUseAreForOthers(t *testing.T) {
	got := share(t, 4, 60*time.Second, saturated{weight: 9, concurrency: 1, takes: time.Second}, saturated{concurrency: 4, takes: time.Second})
	if math.Abs(float64(got[0]-60)) > 2 || math.Abs(float64(got[1]-180)) > 4 {
		t.Errorf("%v messages have begun, want 60 and 180", got)
	}
}
