package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/worker"
)

func TestSlowReceiverDoesNotHangTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Drain = time.Second
		l := &link{Queue: p.queue}
		l.receive = func(ctx context.Context, max int) ([]*waybill.Delivery, error) {
			time.Sleep(10 * time.Second) // a busy database
			return p.queue.Receive(context.WithoutCancel(ctx), max)
		}
		p.send(job{"a", 1})
		p.handle(func(context.Context, job) error { return nil })
		stop := p.start(l)
		synctest.Wait()
		ended := make(chan error, 1)
		go func() { ended <- stop() }()
		select {
		case err := <-ended:
			noError(t, err)
		case <-time.After(time.Hour):
			t.Error("Run has not returned after an hour")
		}
	})
}

func TestBusyWorkerIsNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Idle, p.cfg.Concurrency = 10*time.Second, 1
		var causes []error
		p.handle(func(ctx context.Context, j job) error {
			select {
			case <-ctx.Done():
				causes = append(causes, context.Cause(ctx))
				return ctx.Err()
			case <-time.After(time.Minute):
				return nil
			}
		})
		p.send(job{"a", 1}, job{"b", 1})
		noError(t, p.run(p.queue))
		p.wantDone("a1 b1")
		if len(causes) > 0 {
			t.Errorf("contexts ended: %v", causes)
		}
	})
}

func TestHandlersOwnErrorIsNotTakenForTheWorkers(t *testing.T) {
	for _, own := range []error{waybill.ErrLeaseLost, worker.ErrDrained} {
		synctest.Test(t, func(t *testing.T) {
			p := newFixture(t)
			n := 0
			p.handle(func(context.Context, job) error {
				if n++; n == 1 {
					return fmt.Errorf("of another queue: %w", own)
				}
				return nil
			})
			p.send(job{"a", 1})
			stop := p.start(p.queue)
			time.Sleep(time.Minute)
			noError(t, stop())
			if got := len(p.of(waybill.Retrying)); got != 1 {
				t.Errorf("%v: %d retries counted, want 1", own, got)
			}
		})
	}
}

// A key whose handler hangs takes a share of the prefetch, not all of it.
func TestSlowKeyLeavesRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Drain = time.Second
		p.handle(func(ctx context.Context, j job) error {
			if j.K == "slow" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		var jobs []job
		for n := range 60 {
			jobs = append(jobs, job{"slow", n})
		}
		p.send(append(jobs, job{"other", 1})...)
		stop := p.start(p.queue)
		time.Sleep(10 * time.Second)
		noError(t, stop())
		p.wantDone("other1")
	})
}

// A settler is a queue whose calls that settle refuse a context that has ended, as those
// of a database or a broker do.
type settler struct{ *memory.Queue }

func (s settler) Ack(ctx context.Context, ds ...*waybill.Delivery) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.Queue.Ack(ctx, ds...)
}

func (s settler) Release(ctx context.Context, ds ...*waybill.Delivery) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.Queue.Release(ctx, ds...)
}

// Kills: calls that settle end with the context of handlers.
func TestMessagesAreSettledAfterTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Drain = time.Second
		p.handle(func(ctx context.Context, j job) error {
			<-ctx.Done()
			if j.K == "done" {
				return nil
			}
			return ctx.Err()
		})
		p.send(job{"done", 1}, job{"cut", 1}, job{"cut", 2})
		stop := p.start(settler{p.queue})
		synctest.Wait()
		noError(t, stop())
		p.wantBacklog(2)
		if got := p.failuresLeft(); !cmp.Equal(got, []int{0, 0}) {
			t.Errorf("failures of free messages = %v, want both that were cut free, and the handled one acknowledged", got)
		}
	})
}

// Kills: the pause of a receiver that cannot be reached is never reset.
func TestPauseBeginsAnewAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		var tries []time.Time
		flaky := &link{Queue: p.queue}
		flaky.receive = func(ctx context.Context, max int) ([]*waybill.Delivery, error) {
			if tries = append(tries, time.Now()); len(tries) != 13 && len(tries) <= 15 {
				return nil, fmt.Errorf("dial: %w", waybill.ErrUnavailable)
			}
			return p.queue.Receive(ctx, max)
		}
		p.handle(func(context.Context, job) error { return nil })
		p.send(job{"a", 1})
		stop := p.start(flaky)
		time.Sleep(2 * time.Minute)
		noError(t, stop())
		p.wantDone("a1")
		if len(tries) < 16 {
			t.Fatalf("%d tries, want 16 or more", len(tries))
		}
		if long, short := tries[11].Sub(tries[10]), tries[14].Sub(tries[13]); long != 5*time.Second || short != 50*time.Millisecond {
			t.Errorf("pauses of %v in the first outage and %v at the begin of the next, want 5s and 50ms", long, short)
		}
	})
}

// Kills: of a handler that ended with its context only the context's cause is kept.
func TestErrorOfAStoppedHandlerIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		lossy := &link{Queue: p.queue}
		lossy.renew = func(ds []*waybill.Delivery) []*waybill.Delivery { return ds }
		first := true
		p.handle(func(ctx context.Context, _ job) error {
			if !first {
				return nil
			}
			first = false
			<-ctx.Done()
			return errDeclined
		})
		text := p.logTo()
		p.send(job{"a", 1})
		stop := p.start(lossy)
		time.Sleep(time.Minute)
		noError(t, stop())
		lost := p.of(waybill.LeaseLost)
		if len(lost) != 1 || !errors.Is(lost[0].Err, errDeclined) || !errors.Is(lost[0].Err, waybill.ErrLeaseLost) {
			t.Errorf("events %+v, want one with the error of the handler and the cause", lost)
		}
		if !strings.Contains(text.String(), "declined") {
			t.Errorf("log:\n%s\nwant the error of the handler", text)
		}
	})
}

// A frozen is a queue whose first Renew waits for the end of its context.
type frozen struct {
	*memory.Queue
	thawed bool
}

func (f *frozen) Renew(ctx context.Context, ds ...*waybill.Delivery) ([]*waybill.Delivery, error) {
	if !f.thawed {
		f.thawed = true
		<-ctx.Done()
		return nil, waybill.ErrUnavailable
	}
	return f.Queue.Renew(ctx, ds...)
}

// Kills: a renewal has no timeout, so that one that hangs is the last.
func TestRenewalThatHangsIsTriedAgainInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		runs := 0
		p.handle(func(ctx context.Context, _ job) error {
			runs++
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(4 * p.queue.LeaseTime()):
			}
			return nil
		})
		p.send(job{"a", 1})
		stop := p.start(&frozen{Queue: p.queue})
		synctest.Wait()
		other := p.start(p.db.Queue("jobs"))
		time.Sleep(10 * p.queue.LeaseTime())
		noError(t, stop())
		noError(t, other())
		p.wantDone("a1")
		if runs != 1 {
			t.Errorf("%d runs, want 1: the next renewal came before the lease had ended", runs)
		}
	})
}

// Kills: a message that arrives while the worker stops waits for the end of its lease.
func TestMessageThatArrivesWhileStoppingIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		late := &link{Queue: p.queue}
		late.receive = func(ctx context.Context, max int) ([]*waybill.Delivery, error) {
			<-ctx.Done()
			return p.queue.Receive(context.WithoutCancel(ctx), max) // the database had begun
		}
		p.handle(func(context.Context, job) error { return nil })
		p.send(job{"a", 1}, job{"a", 2})
		stop := p.start(late)
		synctest.Wait()
		noError(t, stop())
		p.wantDone("")
		if got := p.failuresLeft(); !cmp.Equal(got, []int{0, 0}) {
			t.Errorf("failures of free messages = %v, want two at once", got)
		}
	})
}

// A typedNil is an error of a handler that returns a nil pointer by mistake.
type typedNil struct{ text string }

func (e *typedNil) Error() string { return e.text }

func TestErrorWhoseTextPanicsIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		p.handle(func(context.Context, job) error { return (*typedNil)(nil) })
		p.send(job{"", 1})
		stop := p.start(p.queue)
		time.Sleep(time.Hour)
		noError(t, stop())
		p.wantAttempts(9)
		if got := p.db.DeadLetters("failed")[0].Attempts[0].Error; got != "do: <nil>" {
			t.Errorf("the error is %q", got)
		}
	})
}
