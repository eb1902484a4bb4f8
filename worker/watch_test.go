package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

func TestSlowHandlerIsNamedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		var log bytes.Buffer
		p.cfg.Log, p.cfg.SlowHandler = slog.New(slog.NewTextHandler(&log, nil)), 10*time.Second
		p.handle(func(_ context.Context, j job) error { time.Sleep(time.Duration(j.N) * time.Second); return nil })
		waybill.Handle(p.bus, "then", func(context.Context, job) error { return nil })
		p.send(job{"a", 3600}, job{"b", 9})
		stop := p.start(p.queue)
		time.Sleep(2 * time.Hour)
		noError(t, stop())
		p.wantDone("b9 a3600")
		got := strings.Count(log.String(), "handler is slow")
		if got != 1 || !strings.Contains(log.String(), "handler=do running=10s") || !strings.Contains(log.String(), "message=job id=0") {
			t.Errorf("%d warnings:\n%s", got, &log)
		}
	})
}

func TestGoroutinesLeftByAHandlerAreReportedWithItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		var log bytes.Buffer
		p.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		free := make(chan struct{})
		defer close(free)
		p.handle(func(context.Context, job) error {
			for range 300 {
				go func() { <-free }()
			}
			return nil
		})
		waybill.Handle(p.bus, "clean", func(context.Context, job) error { return nil })
		for n := range 5 {
			p.send(job{"a", n})
		}
		stop := p.start(p.queue)
		time.Sleep(10 * time.Minute)
		noError(t, stop())
		if text := log.String(); strings.Count(text, "goroutines that a handler") != 1 || !strings.Contains(text, "transport=jobs handler=do goroutines=1500") || strings.Contains(text, "clean") {
			t.Errorf("the log is:\n%s", text)
		}
	})
}

func TestHandlersShareGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Concurrency = 2
		var mu sync.Mutex
		ran := map[string]int{} // by goroutine
		p.handle(func(context.Context, job) error {
			time.Sleep(time.Second)
			stack := make([]byte, 100)
			of, _, _ := strings.Cut(string(stack[:runtime.Stack(stack, false)]), "[")
			mu.Lock()
			defer mu.Unlock()
			if ran[of]++; ran[of] == 5 {
				runtime.Goexit()
			}
			return nil
		})
		for n := range 20 {
			p.send(job{fmt.Sprint(n), n})
		}
		stop := p.start(p.queue)
		time.Sleep(time.Minute)
		var profile bytes.Buffer
		noError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
		stacks := make([]byte, 1<<20)
		waiting := strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "(*running).handleReady(")
		noError(t, stop())
		if waiting != 2 {
			t.Errorf("%d goroutines wait for another message, want 2", waiting)
		}
		if len(ran) < 3 || len(ran) > 10 {
			t.Errorf("2 handlers at once, and a new goroutine after each one that was ended, are\n%v", ran)
		}
		if strings.Contains(profile.String(), "waybill_handler") {
			t.Errorf("an idle goroutine has the label of a handler:\n%s", &profile)
		}
	})
}

func TestGoexitIsOneFailureOfItsHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Store = p.db
		runs := 0
		p.handle(func(_ context.Context, j job) error {
			if j.K == "bad" {
				runs++
				runtime.Goexit()
			}
			return nil
		})
		p.send(job{"bad", 1}, job{"b", 1})
		stop := p.start(p.queue)
		time.Sleep(time.Hour)
		noError(t, stop())
		p.wantDone("b1")
		parked := p.of(waybill.KeyParked)
		if runs != 1 || len(parked) != 1 || !strings.Contains(parked[0].Err.Error(), "do") || !strings.Contains(parked[0].Err.Error(), "runtime.Goexit") {
			t.Errorf("it ran %d times, and was parked as %+v, want one failure that names the handler", runs, parked)
		}
	})
}

// stuck is an observer that never returns from an event of the worker's own goroutine.
type stuck struct{ free chan struct{} }

func (s stuck) Observe(_ context.Context, e waybill.Event) {
	if e.Kind == waybill.Retrying {
		<-s.free
	}
}

func TestWorkerThatDoesNotMoveIsNotAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, free := newFixture(t), make(chan struct{})
		p.cfg.Observer = stuck{free}
		p.handle(func(_ context.Context, j job) error {
			if j.K == "hang" {
				<-free
			}
			return errDeclined
		})
		w, err := worker.New(p.bus, p.queue, p.cfg)
		noError(t, err)
		noError(t, w.Alive(time.Second)) // it does not run
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		p.send(job{"hang", 1})
		time.Sleep(time.Hour)
		noError(t, w.Alive(time.Second)) // a handler hangs, and others may go on
		p.send(job{"bad", 1})
		time.Sleep(time.Second)
		if err := w.Alive(time.Second); err == nil {
			t.Error("a worker that does not move is alive")
		}
		close(free)
		synctest.Wait()
		noError(t, w.Alive(time.Second))
		cancel()
		noError(t, <-ended)
	})
}

// A watchdog that asks while the last acknowledgements are on their way does not hold up the end.
func TestAliveEndsWithItsWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.handle(func(context.Context, job) error { return nil })
		l := &link{Queue: p.queue}
		l.ack = func([]*waybill.Delivery) error { time.Sleep(3 * time.Second); return nil }
		w, err := worker.New(p.bus, l, p.cfg)
		noError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		p.send(job{"a", 1})
		time.Sleep(time.Second)
		cancel()
		time.Sleep(time.Second) // nothing is decided any more
		start := time.Now()
		if err := w.Alive(30 * time.Second); err != nil || time.Since(start) > 4*time.Second {
			t.Errorf("Alive = %v after %v", err, time.Since(start))
		}
		noError(t, <-ended)
	})
}
