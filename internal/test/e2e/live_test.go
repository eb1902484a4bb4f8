package e2e

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// A stopwatch keeps the longest that anything took, and counts failures.
type stopwatch struct {
	mu      sync.Mutex
	longest time.Duration
	times   []time.Duration
	failed  []error
}

func (w *stopwatch) time(do func() error) {
	start := time.Now()
	err := do()
	took := time.Since(start)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.times = append(w.times, took)
	w.longest = max(w.longest, took)
	if err != nil {
		w.failed = append(w.failed, err)
	}
}

// busy dispatches some 500 transactions a second, of one and of several keys,
// until the function that it returns is called.
func (s *stack) busy(keys []string) (stop func() *stopwatch) {
	const goroutines, every = 8, 16 * time.Millisecond
	var wg sync.WaitGroup
	w := &stopwatch{}
	done := make(chan struct{})
	for g := range goroutines {
		wg.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for i := g; ; i++ {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				mine := []string{keys[i%len(keys)]}
				if i%5 == 0 {
					mine = append(mine, keys[(i+1+g)%len(keys)])
					slices.Sort(mine)
					mine = slices.Compact(mine)
				}
				w.time(func() error { return s.tryDispatch(s.Context(), mine, 1) })
			}
		})
	}
	return func() *stopwatch {
		close(done)
		wg.Wait()
		return w
	}
}

// The number of buckets changes in both directions while several processes
// dispatch and relay.
func TestBucketCountChangesUnderLoad(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		w := s.watch(everyone)
		for range 2 {
			s.patientRelay()
		}
		operator := s.open(s.database)
		stop := s.busy(keyNames("k", 100))
		for _, n := range []int{256, 32, 64} {
			time.Sleep(time.Second)
			planned, err := operator.Rebucket(t.Context(), n, true)
			if err != nil || planned.To != n {
				t.Fatalf("dry run: %+v, %v", planned, err)
			}
			done, err := operator.Rebucket(t.Context(), n, false)
			if err != nil {
				t.Fatal(err)
			}
			if done.From != planned.From || done.To != n {
				t.Errorf("done %+v, planned %+v", done, planned)
			}
			t.Logf("from %d to %d buckets: %d rows, everybody waited %v", done.From, done.To, done.Rows, done.Stall.Round(time.Millisecond))
		}
		time.Sleep(time.Second)
		load := stop()
		t.Logf("%d transactions, %d were to be run again, longest %v", len(load.times), len(load.failed), load.longest.Round(time.Millisecond))
		for _, err := range load.failed {
			if !on.again(err) {
				t.Errorf("a transaction failed: %v", err)
			}
		}
		t.Log(w.judge(30 * time.Second))
		if n := s.count("SELECT count(DISTINCT bucket) FROM waybill_outbox_bucket WHERE bucket >= 0"); n != 64 {
			t.Errorf("%d buckets are left, want 64", n)
		}
	})
}
