package worker_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

// reporting starts a worker whose process reports to r.
func (p *fixture) reporting(r *registry) (stop func() error) {
	p.t.Helper()
	process, err := worker.NewProcess(r, "billing", nil)
	noError(p.t, err)
	p.cfg.Process = process
	w, err := worker.New(p.bus, p.queue, p.cfg)
	noError(p.t, err)
	ctx, cancel := context.WithCancel(p.t.Context())
	reported, end := process.Context(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(reported) }()
	return func() error {
		cancel()
		err := <-ended
		end()
		return err
	}
}

// pause has the registry tell of paused transports from now on.
func (r *registry) pause(transports ...string) { r.set(func() { r.paused = transports }) }

// The messages of a paused transport wait, those in its retry queue too, without a failed
// attempt, and are handled in the order of their keys afterwards.
func TestPausedTransportHandlesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := stored(t), &registry{}
		p.cfg.Concurrency, p.cfg.Prefetch, p.cfg.Inbox = 1, 20, &expiring{conns: 20}
		fails := true
		p.handle(func(_ context.Context, j job) error {
			time.Sleep(time.Second)
			if fails && j.K == "a" {
				return errDeclined
			}
			return nil
		})
		stop := p.reporting(r)
		p.send(job{"b", 1}, job{"a", 1}, job{"b", 2}, job{"a", 2}, job{"b", 3}, job{"b", 4})
		time.Sleep(3500 * time.Millisecond) // a1 has failed, and a2 waits behind it in the retry queue
		r.pause("jobs", "mail")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		before := len(p.of(waybill.Handled))
		p.send(job{"c", 1}, job{"a", 3})
		time.Sleep(time.Hour)
		if got := len(p.of(waybill.Handled)); got != before {
			t.Errorf("%d attempts began in the pause", got-before)
		}
		if want := "paused [jobs] 0/1, "; r.last()[:len(want)] != want {
			t.Errorf("the last report is %q, want %q", r.last(), want)
		}
		failed := len(p.of(waybill.Retrying))
		r.pause("mail")
		fails = false
		p.send(job{"a", 4})
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantDoneOf("a", "a1 a2 a3 a4")
		p.wantDoneOf("b", "b1 b2 b3 b4")
		p.wantDoneOf("c", "c1")
		if got := len(p.of(waybill.Retrying)); got != failed {
			t.Errorf("%d attempts were counted by the pause", got-failed)
		}
		counts := map[string]int{}
		for _, e := range p.of(waybill.Handled) {
			counts[e.Key]++
			if e.Key == "b" && e.Failures > 0 {
				t.Errorf("a message that was given back has %d failures", e.Failures)
			}
		}
		if counts["b"] != 4 || counts["c"] != 1 {
			t.Errorf("attempts by key: %v, want 4 of b and 1 of c", counts)
		}
	})
}

// A process learns of the pause before its first message, also if the registry answers late.
func TestStartingWorkerIsPausedBeforeItsFirstMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := stored(t), &registry{paused: []string{"jobs"}, hangs: true}
		p.handle(func(context.Context, job) error { return nil })
		p.send(job{"a", 1}, job{"a", 2})
		stop := p.reporting(r)
		time.Sleep(time.Minute)
		r.set(func() { r.hangs = false })
		time.Sleep(time.Minute)
		p.wantDone("")
		p.wantBacklog(2)
		r.pause()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		p.wantDone("a1 a2")
		noError(t, stop())
	})
}

// Handlers that run in a pause have as much time as they need: the drain time is for a stop.
func TestPauseWaitsForRunningHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := stored(t), &registry{}
		p.cfg.Drain = time.Second
		p.handle(func(ctx context.Context, _ job) error {
			select {
			case <-time.After(time.Minute):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		p.send(job{"a", 1}, job{"a", 2})
		stop := p.reporting(r)
		time.Sleep(time.Second)
		r.pause("jobs")
		time.Sleep(30 * time.Second)
		if want := "paused [jobs] 1/10, 0 handled, 0 failed: jobs job do 30s"; r.last() != want {
			t.Errorf("the last report is %q, want %q", r.last(), want)
		}
		time.Sleep(time.Minute)
		p.wantDone("a1")
		r.pause()
		time.Sleep(10 * time.Second)
		r.pause("jobs")
		time.Sleep(10 * time.Second)
		noError(t, stop()) // in the pause: then the drain time begins
		p.wantDone("a1")
		p.wantBacklog(1)
		if got := p.of(waybill.Handled)[1].Err; !errors.Is(got, worker.ErrDrained) {
			t.Errorf("the handler that ran at the stop ended with %v, want ErrDrained", got)
		}
	})
}

func TestProcessWithoutItsRegistryKeepsItsPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := stored(t), &registry{paused: []string{"jobs"}}
		p.handle(func(context.Context, job) error { return nil })
		stop := p.reporting(r)
		time.Sleep(10 * time.Second)
		r.set(func() { r.hangs, r.paused = true, nil }) // the database
		p.send(job{"a", 1})
		time.Sleep(time.Hour)
		p.wantDone("")
		r.set(func() { r.hangs = false })
		time.Sleep(7 * time.Second)
		p.wantDone("a1")
		r.set(func() { r.hangs, r.paused = true, []string{"jobs"} })
		p.send(job{"a", 2})
		time.Sleep(time.Hour)
		p.wantDone("a1 a2")
		noError(t, stop())
	})
}

// Limit counts over pauses, and Idle counts the time of one.
func TestPausedWorkerEndsByItsLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := stored(t), &registry{}
		p.cfg.Limit, p.cfg.Idle = 3, 30*time.Second
		p.handle(func(context.Context, job) error { return nil })
		p.send(job{"a", 1}, job{"b", 1})
		stop := p.reporting(r)
		time.Sleep(time.Second)
		r.pause("jobs")
		time.Sleep(10 * time.Second)
		p.send(job{"a", 2}, job{"a", 3}, job{"a", 4})
		r.pause()
		time.Sleep(5 * time.Second)
		p.wantBacklog(2)
		noError(t, stop())
		r.pause("jobs")
		process, err := worker.NewProcess(r, "", nil)
		noError(t, err)
		p.cfg.Process = process
		_, end := process.Context(t.Context())
		defer end()
		start := time.Now()
		noError(t, p.run(p.queue))
		if took := time.Since(start); took != 30*time.Second {
			t.Errorf("a paused worker ended after %v, want 30s", took)
		}
		p.wantBacklog(2)
	})
}

func TestWorkerWithoutTheContextOfItsProcessIsRefused(t *testing.T) {
	p := newFixture(t)
	p.handle(func(context.Context, job) error { return nil })
	process, err := worker.NewProcess(&registry{}, "", nil)
	noError(t, err)
	p.cfg.Process = process
	if err := p.run(p.queue); err == nil {
		t.Error("a worker ran whose process does not report")
	}
}

// A prefetching receiver is one that holds messages between two calls of Receive.
type prefetching struct {
	waybill.Receiver
	receiving, suspended atomic.Int32
	wrong                atomic.Int32 // calls of Suspend while Receive ran
}

func (p *prefetching) Receive(ctx context.Context, max int) ([]*waybill.Delivery, error) {
	p.receiving.Add(1)
	defer p.receiving.Add(-1)
	return p.Receiver.Receive(ctx, max)
}

func (p *prefetching) Suspend(context.Context) error {
	p.suspended.Add(1)
	p.wrong.Add(p.receiving.Load())
	return nil
}

// A receiver that prefetches is suspended before its first message is known to be wanted,
// and in each pause.
func TestPauseSuspendsTheReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := stored(t), &registry{hangs: true}
		p.handle(func(context.Context, job) error { return nil })
		from := &prefetching{Receiver: p.queue}
		process, err := worker.NewProcess(r, "", nil)
		noError(t, err)
		p.cfg.Process = process
		_, end := process.Context(t.Context())
		defer end()
		stop := p.start(from)
		want := func(want string) {
			t.Helper()
			time.Sleep(10 * time.Second)
			if got := fmt.Sprint(from.suspended.Load(), from.receiving.Load()); got != want {
				t.Errorf("suspended and receiving: %s, want %s", got, want)
			}
		}
		want("1 0")
		r.set(func() { r.hangs = false })
		want("1 1")
		r.pause("jobs")
		want("2 0")
		r.pause()
		want("2 1")
		noError(t, stop())
		if n := from.wrong.Load(); n > 0 {
			t.Errorf("%d suspensions while it received", n)
		}
	})
}
