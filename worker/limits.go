package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
)

// Limits end the workers of a process in good order, so that its supervisor starts a new
// one. Zero means no limit.
type Limits struct {
	// Time is how long they run at most. They end up to a tenth earlier, at random, so that
	// processes that were started together do not stop together.
	Time time.Duration
	// Memory is the number of bytes that the Go runtime has from the operating system, as
	// GOMEMLIMIT counts them. It is read once a second.
	Memory uint64
	// Failures is the number of failed attempts, see Failed.
	Failures int
}

// A LimitError is the cause of the end of a context of Limits.
type LimitError struct {
	Limit  string // time, memory or failure
	Detail string // value reached, and the limit
}

// Error implements error.
func (e *LimitError) Error() string { return fmt.Sprintf("%s limit reached: %s", e.Limit, e.Detail) }

// Context returns a context that ends when a limit is reached, with a *LimitError as its
// cause, and the observer of the workers that run in it. A process calls it once, for all its
// workers and relays. The caller calls stop when they have ended.
func (l Limits) Context(ctx context.Context) (limited context.Context, observer waybill.Observer, stop context.CancelFunc) {
	limited, cancel := context.WithCancelCause(ctx)
	w := &limitWatch{Limits: l, reached: cancel}
	if l.Time > 0 {
		after := l.Time - rand.N(l.Time/10+1)
		timer := time.AfterFunc(after, func() {
			cancel(&LimitError{"time", fmt.Sprintf("%v of %v", after.Round(time.Millisecond), l.Time)})
		})
		context.AfterFunc(limited, func() { timer.Stop() })
	}
	if l.Memory > 0 {
		go w.watchMemory(limited)
	}
	return limited, w, func() { cancel(nil) }
}

// limitWatch implements waybill.Observer.
type limitWatch struct {
	Limits
	reached context.CancelCauseFunc
	failed  atomic.Int64
}

// Observe implements waybill.Observer.
func (w *limitWatch) Observe(_ context.Context, e waybill.Event) {
	if e.Kind != waybill.Handled || !Failed(e.Err) || w.Failures <= 0 {
		return
	}
	if n := w.failed.Add(1); n >= int64(w.Failures) {
		w.reached(&LimitError{"failure", fmt.Sprintf("%d attempts failed, the limit is %d", n, w.Failures)})
	}
}

func (w *limitWatch) watchMemory(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if used := memoryInUse(); used >= w.Memory {
			w.reached(&LimitError{"memory", fmt.Sprintf("%d MiB in use, the limit is %d MiB", used>>20, w.Memory>>20)})
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// memoryInUse returns what GOMEMLIMIT bounds: https://pkg.go.dev/runtime/debug#SetMemoryLimit
func memoryInUse() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}
