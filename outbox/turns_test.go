package outbox

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTurnsAreSharedOrAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 4
		turns := newTurns(workers)
		var now, most atomic.Int32
		var wg sync.WaitGroup
		for i := range workers {
			wg.Go(func() {
				for n := range 50 {
					alone := (n+i)%5 == 0
					giveBack := turns.take(t.Context(), alone)
					in := now.Add(1)
					if alone && in != 1 {
						t.Errorf("%d publish, want one alone", in)
					}
					most.Store(max(most.Load(), in))
					time.Sleep(time.Millisecond)
					if alone && now.Load() != 1 {
						t.Errorf("%d publish, want one alone", now.Load())
					}
					now.Add(-1)
					giveBack()
				}
			})
		}
		wg.Wait()
		if most.Load() < 2 {
			t.Error("no two ever published side by side")
		}

		giveBack := turns.take(t.Context(), false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if turns.take(ctx, true) != nil {
			t.Error("one was alone beside another")
		}
		giveBack()
		if turns.take(t.Context(), true) == nil {
			t.Error("what was taken in vain was not given back")
		}
	})
}
