package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDeclined = errors.New("declined")

// job is the message of these tests; K and N name it, as in a1.
type job struct {
	K string
	N int
}

func (job) MessageName() string    { return "job" }
func (j job) PartitionKey() string { return j.K }
func (j job) String() string       { return fmt.Sprint(j.K, j.N) }

// unkeyed is a message without a partition key.
type unkeyed struct{ N int }

func (unkeyed) MessageName() string { return "unkeyed" }

// A fixture is a queue, a bus, and the results and events there. Make it inside the
// bubble.
type fixture struct {
	t     testing.TB
	db    *memory.DB
	queue *memory.Queue
	bus   *waybill.Bus
	cfg   worker.Config

	mu     sync.Mutex
	done   []string // handled with success, in order
	events []waybill.Event
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	p := &fixture{t: t, db: memory.NewDB(), bus: waybill.NewBus("main")}
	p.queue = p.db.Queue("jobs")
	p.bus.AddSender("jobs", p.queue)
	p.bus.Route("*", "jobs")
	p.cfg = worker.Config{Transport: "jobs", Observer: p}
	return p
}

func (p *fixture) Observe(_ context.Context, e waybill.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, e)
}

// of returns the events of a kind so far.
func (p *fixture) of(kind waybill.EventKind) []waybill.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.events), func(e waybill.Event) bool { return e.Kind != kind })
}

// handle registers a handler of jobs; successes are added to done.
func (p *fixture) handle(fn func(ctx context.Context, j job) error) {
	waybill.Handle(p.bus, "do", func(ctx context.Context, j job) error {
		err := fn(ctx, j)
		if err == nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.done = append(p.done, j.String())
		}
		return err
	})
}

func (p *fixture) send(jobs ...job) {
	p.t.Helper()
	for _, j := range jobs {
		if _, err := p.bus.Dispatch(p.t.Context(), j); err != nil {
			p.t.Fatal(err)
		}
	}
}

// start runs a worker until the returned function is called, which waits for it
// and returns Run's error.
func (p *fixture) start(from waybill.Receiver) (stop func() error) {
	p.t.Helper()
	_, cancel, ended := p.begin(from)
	return sync.OnceValue(func() error { cancel(); return <-ended })
}

// begin is start for tests that look at the worker while it ends.
func (p *fixture) begin(from waybill.Receiver) (w *worker.Worker, stop func(), ended <-chan error) {
	p.t.Helper()
	w, err := worker.New(p.bus, from, p.cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	end := make(chan error, 1)
	go func() { end <- w.Run(ctx) }()
	return w, cancel, end
}

// run runs a worker until Run returns without a stop.
func (p *fixture) run(from waybill.Receiver) error {
	p.t.Helper()
	w, err := worker.New(p.bus, from, p.cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	return w.Run(p.t.Context())
}

func (p *fixture) wantDone(want string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if got := strings.Join(p.done, " "); got != want {
		p.t.Errorf("handled %q, want %q", got, want)
	}
}

func (p *fixture) wantBacklog(want int) {
	p.t.Helper()
	if got := p.queue.Len(); got != want {
		p.t.Errorf("%d messages left in the queue, want %d", got, want)
	}
}

// failuresLeft returns the failure counts of the messages in the queue.
func (p *fixture) failuresLeft() []int {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Nanosecond)
	defer cancel()
	ds, _ := p.db.Queue("jobs").Receive(ctx, 1000)
	var failures []int
	for _, d := range ds {
		failures = append(failures, d.Failures)
	}
	return failures
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFailedKeyIsRetriedInPlaceWhileOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Retry = waybill.Backoff{Jitter: -1}
		failures := 0
		var took []time.Duration
		start := time.Now()
		p.handle(func(_ context.Context, j job) error {
			if j.K == "a" {
				took = append(took, time.Since(start))
			}
			if j.String() == "a1" && failures < 2 {
				failures++
				return errDeclined
			}
			return nil
		})
		p.send(job{"a", 1}, job{"a", 2}, job{"b", 1}, job{"a", 3}, job{"b", 2})
		stop := p.start(p.queue)
		time.Sleep(500 * time.Millisecond)
		p.wantDone("b1 b2")
		time.Sleep(time.Minute)
		p.wantDone("b1 b2 a1 a2 a3")
		noError(t, stop())
		p.wantBacklog(0)
		if want := []time.Duration{0, time.Second, 4 * time.Second, 4 * time.Second, 4 * time.Second}; !cmp.Equal(took, want) {
			t.Errorf("key a ran at %v, want %v", took, want)
		}
		retries := p.of(waybill.Retrying)
		if len(retries) != 2 || retries[0].Failures != 1 || retries[1].Failures != 2 || retries[1].Delay != 3*time.Second || !errors.Is(retries[0].Err, errDeclined) {
			t.Errorf("retries = %+v, want failures 1 and 2 with their delays and errors", retries)
		}
	})
}

func TestErrorDecidesHowLongAMessageWaits(t *testing.T) {
	tests := []struct {
		name string
		err  error
		cfg  worker.Config
		want time.Duration
	}{
		{"any error", errDeclined, worker.Config{}, time.Second},
		{"unrecoverable", waybill.Unrecoverable(errDeclined), worker.Config{}, 5 * time.Minute},
		{"unrecoverable, longest configured", waybill.Unrecoverable(errDeclined), worker.Config{Retry: waybill.Backoff{MaxDelay: time.Hour}}, time.Hour},
		{"retry after", waybill.RetryAfter(errDeclined, 90*time.Second), worker.Config{}, 90 * time.Second},
		{"retry after, capped", waybill.RetryAfter(errDeclined, 24*time.Hour), worker.Config{}, time.Hour},
		{"retry after, cap configured", waybill.RetryAfter(errDeclined, time.Hour), worker.Config{Retry: waybill.Backoff{MaxRetryAfter: time.Minute}}, time.Minute},
		{"panic", nil, worker.Config{}, time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newFixture(t)
				p.cfg.Retry, p.cfg.Retry.Jitter = tt.cfg.Retry, -1
				var at []time.Time
				p.handle(func(context.Context, job) error {
					at = append(at, time.Now())
					if len(at) > 1 {
						return nil
					}
					if tt.err == nil {
						panic("boom")
					}
					return tt.err
				})
				p.send(job{"a", 1})
				stop := p.start(p.queue)
				time.Sleep(2 * time.Hour)
				noError(t, stop())
				if len(at) != 2 || at[1].Sub(at[0]) != tt.want {
					t.Errorf("handled at %v, want twice, %v apart", at, tt.want)
				}
			})
		})
	}
}

func TestMessageThatKeepsFailingWaitsTheLongest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.MaxRetries, p.cfg.Retry = 2, waybill.Backoff{Jitter: -1}
		p.handle(func(context.Context, job) error { return errDeclined })
		p.send(job{"a", 1})
		stop := p.start(p.queue)
		time.Sleep(10 * time.Minute)
		noError(t, stop())
		var delays []time.Duration
		for _, e := range p.of(waybill.Retrying) {
			delays = append(delays, e.Delay)
		}
		if want := []time.Duration{time.Second, 3 * time.Second, 5 * time.Minute, 5 * time.Minute}; !cmp.Equal(delays, want) {
			t.Errorf("delays = %v, want %v", delays, want)
		}
		p.wantBacklog(1)
	})
}

func TestUndecodableMessageWaitsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.handle(func(context.Context, job) error { return nil })
		id, err := waybill.NewMessageID()
		noError(t, err)
		noError(t, p.queue.Send(t.Context(), &waybill.Record{ID: id, Name: "job", Key: "a", Body: []byte("{"), DispatchedAt: time.Now()}))
		p.send(job{"a", 2}, job{"b", 1})
		stop := p.start(p.queue)
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantDone("b1")
		p.wantBacklog(2)
		if got := p.of(waybill.Retrying); len(got) != 1 || got[0].Delay != 5*time.Minute {
			t.Errorf("retries = %+v, want one, after the longest delay", got)
		}
	})
}

func TestRetryRunsOnlyTheHandlersThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		runs := map[string]int{}
		for _, name := range []string{"one", "two", "three"} {
			waybill.Handle(p.bus, name, func(context.Context, job) error {
				if runs[name]++; name == "two" && runs[name] < 4 {
					return errDeclined
				}
				if name == "three" && runs[name] < 2 {
					return errDeclined
				}
				return nil
			})
		}
		p.send(job{"a", 1})
		stop := p.start(p.queue)
		time.Sleep(time.Minute)
		noError(t, stop())
		if want := map[string]int{"one": 1, "two": 4, "three": 2}; !cmp.Equal(runs, want) {
			t.Errorf("runs = %v, want %v", runs, want)
		}
		p.wantBacklog(0)
	})
}

func TestStopLetsRunningHandlersFinishAndReleasesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Concurrency = 2
		p.handle(func(ctx context.Context, j job) error {
			select {
			case <-ctx.Done():
				t.Errorf("context of %v ended within the drain time: %v", j, context.Cause(ctx))
			case <-time.After(20 * time.Second):
			}
			return nil
		})
		p.send(job{"a", 1}, job{"a", 2}, job{"b", 1}, job{"c", 1}, job{"d", 1})
		stop := p.start(p.queue)
		synctest.Wait()
		start := time.Now()
		noError(t, stop())
		if took := time.Since(start); took != 20*time.Second {
			t.Errorf("Run took %v to stop, want the 20 s of its handlers", took)
		}
		slices.Sort(p.done)
		p.wantDone("a1 b1")
		if got := p.failuresLeft(); !cmp.Equal(got, []int{0, 0, 0}) {
			t.Errorf("failures of the remaining messages = %v, want three free messages without a failure", got)
		}
	})
}

func TestHandlerThatOutlivesTheDrainIsNotAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Drain = 5 * time.Second
		var cause error
		p.handle(func(ctx context.Context, _ job) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		})
		p.send(job{"a", 1}, job{"a", 2})
		stop := p.start(p.queue)
		synctest.Wait()
		start := time.Now()
		noError(t, stop())
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("Run took %v to stop, want the drain time", took)
		}
		if !errors.Is(cause, worker.ErrDrained) {
			t.Errorf("cause = %v, want %v", cause, worker.ErrDrained)
		}
		if got := p.failuresLeft(); !cmp.Equal(got, []int{0, 0}) {
			t.Errorf("failures of the remaining messages = %v, want two free messages without a failure", got)
		}
		if got := p.of(waybill.Retrying); len(got) > 0 {
			t.Errorf("retries = %+v, want none", got)
		}
	})
}

func TestHandlerThatSucceedsAfterItsContextEndedIsAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Drain = time.Second
		p.handle(func(ctx context.Context, _ job) error { <-ctx.Done(); return nil })
		p.send(job{"a", 1})
		stop := p.start(p.queue)
		synctest.Wait()
		noError(t, stop())
		p.wantDone("a1")
		p.wantBacklog(0)
	})
}

func TestHandlerThatIgnoresItsContextIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Drain = time.Second
		free := make(chan struct{})
		p.handle(func(_ context.Context, j job) error {
			if j.K == "stuck" {
				<-free
			}
			return nil
		})
		p.send(job{"stuck", 1}, job{"b", 1})
		stop := p.start(p.queue)
		synctest.Wait()
		if err := stop(); err == nil || !strings.Contains(err.Error(), "1 handlers ignore the end of their context after 1s: do of job 0") {
			t.Errorf("Run = %v, want an error that names the handlers", err)
		}
		p.wantBacklog(1)
		time.Sleep(p.queue.LeaseTime())
		if got := p.failuresLeft(); !cmp.Equal(got, []int{0}) {
			t.Errorf("failures after the lease = %v, want the message free again", got)
		}
		close(free)
	})
}

func TestLimitIsExact(t *testing.T) {
	for _, concurrency := range []int{1, 3, 10} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newFixture(t)
				p.cfg.Concurrency, p.cfg.Limit = concurrency, 7
				runs := 0
				waybill.Handle(p.bus, "do", func(context.Context, unkeyed) error {
					p.mu.Lock()
					defer p.mu.Unlock()
					if runs++; runs == 3 {
						return errDeclined // counts as well
					}
					return nil
				})
				for i := range 20 {
					_, err := p.bus.Dispatch(t.Context(), unkeyed{i})
					noError(t, err)
				}
				noError(t, p.run(p.queue))
				if runs != 7 {
					t.Errorf("%d messages handled, want 7", runs)
				}
				p.wantBacklog(14)
				if got := len(p.failuresLeft()); got != 13 {
					t.Errorf("%d messages are free, want 13: one waits", got)
				}
			})
		})
	}
}

func TestIdleWorkerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Idle = time.Minute
		p.handle(func(context.Context, job) error { return nil })
		p.send(job{"a", 1})
		time.AfterFunc(50*time.Second, func() { p.send(job{"a", 2}) })
		start := time.Now()
		noError(t, p.run(p.queue))
		if took := time.Since(start); took != 110*time.Second {
			t.Errorf("Run took %v, want a minute after the last message", took)
		}
		p.wantDone("a1 a2")
	})
}

// link is a queue with faults: receive and renew replace the call, ack precedes it.
type link struct {
	*memory.Queue
	receive func(ctx context.Context, max int) ([]*waybill.Delivery, error)
	ack     func(ds []*waybill.Delivery) error
	renew   func(ds []*waybill.Delivery) []*waybill.Delivery
	release func()
}

func (l *link) Receive(ctx context.Context, max int) ([]*waybill.Delivery, error) {
	if l.receive != nil {
		return l.receive(ctx, max)
	}
	return l.Queue.Receive(ctx, max)
}

func (l *link) Ack(ctx context.Context, ds ...*waybill.Delivery) error {
	if l.ack != nil {
		if err := l.ack(ds); err != nil {
			return err
		}
	}
	return l.Queue.Ack(ctx, ds...)
}

func (l *link) Release(ctx context.Context, ds ...*waybill.Delivery) error {
	if l.release != nil {
		l.release()
	}
	return l.Queue.Release(ctx, ds...)
}

func (l *link) Renew(ctx context.Context, ds ...*waybill.Delivery) ([]*waybill.Delivery, error) {
	if l.renew != nil {
		return l.renew(ds), nil
	}
	return l.Queue.Renew(ctx, ds...)
}

func TestLeaseIsKeptWhileAHandlerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Concurrency = 1
		runs := 0
		p.handle(func(context.Context, job) error {
			runs++
			time.Sleep(4 * p.queue.LeaseTime())
			return nil
		})
		p.send(job{"a", 1}, job{"b", 1}) // b1 is received and not running yet
		stop, other := p.start(p.queue), p.start(p.db.Queue("jobs"))
		time.Sleep(10 * p.queue.LeaseTime())
		noError(t, stop())
		noError(t, other())
		if runs != 2 {
			t.Errorf("%d runs, want 2: renewed leases do not pass to another worker", runs)
		}
	})
}

func TestHandlerIsStoppedWhenItsLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		lossy := &link{Queue: p.queue}
		lossy.renew = func(ds []*waybill.Delivery) []*waybill.Delivery { return ds }
		var cause error
		runs := 0
		p.handle(func(ctx context.Context, j job) error {
			if runs++; runs > 1 {
				return nil
			}
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		})
		p.send(job{"a", 1})
		stop := p.start(lossy)
		time.Sleep(time.Minute)
		noError(t, stop())
		if !errors.Is(cause, waybill.ErrLeaseLost) {
			t.Errorf("cause = %v, want %v", cause, waybill.ErrLeaseLost)
		}
		if lost, retries := p.of(waybill.LeaseLost), p.of(waybill.Retrying); len(lost) != 1 || len(retries) != 0 {
			t.Errorf("events: %d leases lost, %d retries; want one and none: no failure is counted", len(lost), len(retries))
		}
		p.wantDone("a1") // again, when the lease had ended
	})
}

func TestUnreachableTransportIsRiddenOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		var tries []time.Time
		flaky := &link{Queue: p.queue}
		flaky.receive = func(ctx context.Context, max int) ([]*waybill.Delivery, error) {
			if tries = append(tries, time.Now()); len(tries) <= 12 {
				return nil, fmt.Errorf("dial: %w", waybill.ErrUnavailable)
			}
			return p.queue.Receive(ctx, max)
		}
		p.handle(func(context.Context, job) error { return nil })
		p.send(job{"a", 1})
		stop := p.start(flaky)
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantDone("a1")
		if first, last := tries[1].Sub(tries[0]), tries[11].Sub(tries[10]); first != 50*time.Millisecond || last != 5*time.Second {
			t.Errorf("pauses go from %v to %v, want from 50ms to 5s", first, last)
		}
	})
}

func TestReceiverThatFailsForGoodEndsTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		broken := &link{Queue: p.queue}
		first := true
		broken.receive = func(ctx context.Context, max int) ([]*waybill.Delivery, error) {
			if first {
				first = false
				return p.queue.Receive(ctx, max)
			}
			return nil, errDeclined
		}
		p.handle(func(context.Context, job) error { time.Sleep(time.Second); return nil })
		p.send(job{"a", 1})
		if err := p.run(broken); !errors.Is(err, errDeclined) {
			t.Errorf("Run = %v, want %v", err, errDeclined)
		}
		p.wantDone("a1") // the running handler has finished
		p.wantBacklog(0)

		broken.receive = func(context.Context, int) ([]*waybill.Delivery, error) { return nil, nil }
		if err := p.run(broken); err == nil {
			t.Error("Run with a receiver that returns nothing at all = nil, want an error")
		}
	})
}

func TestAcknowledgementsAreBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Concurrency, p.cfg.Prefetch = 1, 60
		var sizes []int
		slow := &link{Queue: p.queue}
		slow.ack = func(ds []*waybill.Delivery) error {
			sizes = append(sizes, len(ds))
			time.Sleep(time.Second)
			return nil
		}
		p.handle(func(context.Context, job) error { return nil })
		for i := range 50 {
			p.send(job{"a", i})
		}
		stop := p.start(slow)
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantBacklog(0)
		if len(sizes) > 3 {
			t.Errorf("50 messages were acknowledged in calls of %v, want them gathered", sizes)
		}
	})
}

func TestFailedAcknowledgementBringsTheMessageAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		broken := true
		lossy := &link{Queue: p.queue}
		lossy.ack = func([]*waybill.Delivery) error {
			if broken {
				broken = false
				return waybill.ErrUnavailable
			}
			return nil
		}
		p.handle(func(context.Context, job) error { return nil })
		p.send(job{"a", 1})
		stop := p.start(lossy)
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantDone("a1 a1")
		p.wantBacklog(0)
	})
}

func TestWrongConfigIsRefused(t *testing.T) {
	bus := waybill.NewBus("main")
	_, err := worker.New(bus, memory.NewDB().Queue("jobs"), worker.Config{})
	if err == nil || !strings.Contains(err.Error(), "bus main has no handlers") || !strings.Contains(err.Error(), "register them with waybill.Handle") {
		t.Errorf("New with a bus without handlers = %v, want an error that says so", err)
	}
	waybill.Handle(bus, "do", func(context.Context, job) error { return nil })
	for _, c := range []struct {
		worker.Config
		want string
	}{
		{worker.Config{Concurrency: -1}, "Concurrency is negative (-1): leave it zero"}, {worker.Config{Prefetch: -1}, "Prefetch"}, {worker.Config{MaxCrashes: -1}, "MaxCrashes"},
		{worker.Config{Limit: -1}, "Limit"}, {worker.Config{Drain: -1}, "Drain"}, {worker.Config{Idle: -1}, "Idle"}, {worker.Config{SlowHandler: -1}, "SlowHandler"},
		{worker.Config{Store: memory.NewDB()}, "a Store needs the name of the Transport"}, {worker.Config{OnExhausted: "drop"}, "want block, park or skip"},
		{worker.Config{Slots: new(worker.Slots)}, "make it by NewSlots"}, {worker.Config{Priority: 1}, "decide nothing without Slots"}, {worker.Config{Weight: 2}, "decide nothing without Slots"},
		{worker.Config{Retry: waybill.Backoff{Delay: -1}}, ""}, {worker.Config{Retry: waybill.Backoff{Multiplier: 0.5}}, ""}, {worker.Config{Retry: waybill.Backoff{Jitter: 2}}, ""},
	} {
		if w, err := worker.New(bus, memory.NewDB().Queue("jobs"), c.Config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%+v) = %v, %v, want an error with %q", c.Config, w, err, c.want)
		}
	}
}

func TestUnrecoverableWithoutAStoreSaysThatItIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		text := p.logTo()
		p.handle(func(context.Context, job) error { return waybill.Unrecoverable(errDeclined) })
		p.send(job{"a", 1})
		stop := p.start(p.queue)
		time.Sleep(time.Second)
		noError(t, stop())
		if !strings.Contains(text.String(), "is retried for ever: only a worker with a Store has dead letters") {
			t.Errorf("the log does not say what happens to the message:\n%s", text)
		}
	})
}

// Several workers that fail now and then, and start and stop, handle each key in order.
func TestWorkersShareAQueueInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Concurrency, p.cfg.Prefetch = 4, 6
		tries := map[string]int{}
		p.handle(func(ctx context.Context, j job) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Duration(1+j.N%5) * 40 * time.Millisecond):
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			if tries[j.String()]++; (j.N+len(j.K))%9 == 0 && tries[j.String()] < 3 {
				return errDeclined
			}
			return nil
		})
		const each = 40
		keys := []string{"a", "b", "c", "d", "e"}
		for n := range each {
			for _, k := range keys {
				p.send(job{k, n})
			}
		}
		for range 12 { // workers start and stop, two at a time
			one := p.start(p.db.Queue("jobs"))
			time.Sleep(300 * time.Millisecond)
			two := p.start(p.db.Queue("jobs"))
			time.Sleep(700 * time.Millisecond)
			noError(t, one())
			time.Sleep(300 * time.Millisecond)
			noError(t, two())
		}
		stop := p.start(p.db.Queue("jobs"))
		time.Sleep(10 * time.Minute)
		noError(t, stop())
		p.wantBacklog(0)
		next := map[string]int{}
		for _, name := range p.done {
			if want := fmt.Sprint(name[:1], next[name[:1]]); name != want {
				t.Errorf("handled %s, want %s", name, want)
			}
			next[name[:1]]++
		}
		for _, k := range keys {
			if next[k] != each {
				t.Errorf("key %s: %d messages handled, want %d", k, next[k], each)
			}
		}
	})
}
