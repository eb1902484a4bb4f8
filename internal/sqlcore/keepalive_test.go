package sqlcore_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/internal/sqlcore"
)

func TestKeepAlivePingsUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var longest time.Duration
		pings, last := 0, time.Now()
		stop := sqlcore.KeepAlive(ctx, 30*time.Second, func(context.Context) {
			longest = max(longest, time.Since(last))
			last = time.Now()
			pings++
		})
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if pings < 20 || longest > 15*time.Second {
			t.Errorf("%d pings in 5 min, %v apart at most, want one in each half of the idle timeout", pings, longest)
		}
		cancel()
		before := pings
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if pings != before {
			t.Errorf("%d pings after the context ended, want none", pings-before)
		}
		stop()
	})
}

// A ping that is under way has the connection.
func TestKeepAliveStopsAfterTheRunningPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pings, running := 0, false
		stop := sqlcore.KeepAlive(t.Context(), 3*time.Second, func(context.Context) {
			running = true
			time.Sleep(time.Minute)
			running = false
			pings++
		})
		time.Sleep(2 * time.Second)
		stop()
		if running || pings != 1 {
			t.Errorf("stopped with running = %v and %d pings, want after the one that ran", running, pings)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if pings != 1 {
			t.Errorf("%d pings after stop, want none", pings-1)
		}
	})
}

// Statements of the transaction wait for a ping that is not answered, whatever their contexts.
func TestPingWithoutAnswerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := sqlcore.KeepAlive(t.Context(), 30*time.Second, func(ctx context.Context) { <-ctx.Done() })
		time.Sleep(11 * time.Second)
		begun := time.Now()
		stop()
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("stop waits for %v", took)
		}
	})
}
