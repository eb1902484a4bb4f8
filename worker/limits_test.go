package worker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/worker"
)

// reachedLimit is the limit that ended ctx.
func reachedLimit(ctx context.Context) string {
	var e *worker.LimitError
	if errors.As(context.Cause(ctx), &e) {
		return e.Limit
	}
	return ""
}

// Twenty workers of one deployment do not leave the queue without any.
func TestTimeLimitsOfAFleetAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, minutes := time.Now(), map[int]int{}
		var ended []context.Context
		for range 20 {
			ctx, _, stop := worker.Limits{Time: time.Hour}.Context(t.Context())
			defer stop()
			ended = append(ended, ctx)
		}
		for _, ctx := range ended {
			<-ctx.Done()
			if reachedLimit(ctx) != "time" {
				t.Errorf("it ended for %v", context.Cause(ctx))
			}
		}
		if took := time.Since(start); took < 54*time.Minute || took > time.Hour {
			t.Errorf("the last ended after %v", took)
		}
		for range 2000 { // more than a fleet, against luck
			began := time.Now()
			ctx, _, stop := worker.Limits{Time: time.Hour}.Context(t.Context())
			<-ctx.Done()
			stop()
			minutes[int(time.Since(began)/time.Minute)]++
		}
		if len(minutes) != 6 && len(minutes) != 7 { // 54 to 59, and 60 itself
			t.Errorf("they ended in minutes %v", minutes)
		}
	})
}

// runLimited runs a worker until a limit ends it. It reports how many handlers began, which
// call work and fail, and the limit.
func runLimited(t *testing.T, l worker.Limits, work func()) (began int, limit string) {
	t.Helper()
	p := newFixture(t)
	ctx, watch, stop := l.Context(t.Context())
	defer stop()
	p.cfg.Observer, p.cfg.Concurrency = watch, 2
	done := 0
	p.handle(func(context.Context, job) error {
		began++
		work()
		done++
		return errDeclined
	})
	for n := range 500 {
		p.send(job{"a", n})
	}
	w, err := worker.New(p.bus, p.queue, p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(ctx); err != nil || done != began {
		t.Errorf("Run = %v after %d of %d handlers that began", err, done, began)
	}
	return began, reachedLimit(ctx)
}

func TestFailureLimitEndsAWorkerInGoodOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if n, limit := runLimited(t, worker.Limits{Failures: 3}, func() { time.Sleep(time.Second) }); n != 3 || limit != "failure" {
			t.Errorf("it ended by %q after %d failures, want 3", limit, n)
		}
	})
}

func TestWorkerThatLeaksEndsAtItsMemoryLimit(t *testing.T) {
	var leak [][]byte
	const limit = 512 << 20
	synctest.Test(t, func(t *testing.T) {
		n, reached := runLimited(t, worker.Limits{Memory: limit}, func() {
			mebibyte := make([]byte, 1<<20)
			for i := range mebibyte {
				mebibyte[i] = 1
			}
			leak = append(leak, mebibyte)
			time.Sleep(time.Second)
		})
		if reached != "memory" || n < 100 || n > 512 {
			t.Errorf("it ended by %q after %d messages of 1 MiB, want memory and at most 512", reached, n)
		}
	})
	leak = nil
}
