package middleware_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/middleware"
	"github.com/waybill-go/waybill/worker"
)

func TestThrottleSpacesReceivedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mw := middleware.Throttle(2, 3)
		start := time.Now()
		var at []time.Duration
		run := mw.Wrap(func(context.Context, *waybill.Envelope) error { at = append(at, time.Since(start)); return errDeclined })
		other := mw.Wrap((&end{}).run) // of another bus, with the same rate
		env := waybill.NewEnvelope(plain{}, received)
		for range 4 {
			if err := run(t.Context(), env); err != errDeclined {
				t.Errorf("error = %v, want that of the handler", err)
			}
		}
		if err := run(t.Context(), waybill.NewEnvelope(plain{})); err != errDeclined || time.Since(start) != 500*time.Millisecond {
			t.Errorf("a dispatch after %v: %v, want no wait", time.Since(start), err)
		}
		if err := other(t.Context(), env); err != nil || time.Since(start) != time.Second {
			t.Errorf("another bus after %v: %v, want its slot at 1s", time.Since(start), err)
		}
		if len(at) != 5 || at[2] != 0 || at[3] != 500*time.Millisecond {
			t.Errorf("handled at %v, want three at once and the fourth after half a second", at)
		}
	})
}

func TestThrottleWithoutASlotCountsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &end{}
		run := middleware.Throttle(1, 1).Wrap(inner.run)
		env := waybill.NewEnvelope(plain{}, received)
		if err := run(t.Context(), env); err != nil {
			t.Fatal(err)
		}
		inner.env = nil
		soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		stopped, stop := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, stop)
		for name, ctx := range map[string]context.Context{"deadline": soon, "stop": stopped} {
			if err := run(ctx, env); !errors.Is(err, waybill.ErrUnavailable) || inner.env != nil {
				t.Errorf("%s: %v, want unavailable, and no handler called", name, err)
			}
		}
	})
}

func TestCircuitBreakerOpensAndProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &end{err: errDeclined}
		run := middleware.CircuitBreaker(3, time.Minute).Wrap(inner.run)
		env := waybill.NewEnvelope(plain{}, received)
		want := func(when string, called bool) {
			t.Helper()
			inner.env = nil
			err := run(t.Context(), env)
			if (inner.env != nil) != called {
				t.Errorf("%s: the handler was called: %t, want %t", when, !called, called)
			}
			if refused := errors.Is(err, waybill.ErrUnavailable); refused == called && when != "probe that fails" {
				t.Errorf("%s: %v, want unavailable: %t", when, err, !called)
			}
			if !called && (!strings.Contains(err.Error(), "declined") || errors.Is(err, errDeclined)) {
				t.Errorf("%s: %v, want the last failure in words alone", when, err)
			}
		}
		want("first failure", true)
		want("second failure", true)
		inner.err = nil
		want("success", true) // which begins the count anew
		inner.err = errDeclined
		for range 3 {
			want("failures in a row", true)
		}
		want("open", false)
		time.Sleep(time.Minute - 1)
		want("end of the pause", false)
		time.Sleep(time.Nanosecond)
		want("probe that fails", true)
		want("open again", false)
		time.Sleep(time.Minute)
		inner.err = nil
		want("probe that succeeds", true)
		inner.err = errDeclined
		for range 3 {
			want("closed: three failures", true)
		}
		want("open once more", false)
		if err := run(t.Context(), waybill.NewEnvelope(plain{})); err != errDeclined {
			t.Errorf("a dispatch through an open breaker: %v, want the sender's error", err)
		}
	})
}

func TestCircuitBreakerCountsNeitherBadMessagesNorStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &end{}
		run := middleware.CircuitBreaker(2, time.Minute).Wrap(inner.run)
		env := waybill.NewEnvelope(plain{}, received)
		stopped, stop := context.WithCancel(t.Context())
		stop()
		late, cancel := context.WithTimeout(t.Context(), 0)
		defer cancel()
		neither := func() {
			inner.err = waybill.Unrecoverable(errDeclined)
			_ = run(t.Context(), env)
			inner.err = context.Canceled
			_ = run(stopped, env)
		}
		for range 5 {
			neither()
		}
		inner.err = errDeclined
		_ = run(t.Context(), env)
		neither() // and they do not begin the count anew
		inner.err = context.DeadlineExceeded
		_ = run(late, env) // a timeout counts
		if err := run(t.Context(), env); !errors.Is(err, waybill.ErrUnavailable) {
			t.Errorf("after a failure and a timeout: %v, want an open breaker", err)
		}
		time.Sleep(time.Minute)
		neither() // probes without a result
		inner.err = nil
		if err := run(t.Context(), env); err != nil {
			t.Errorf("after a probe without a result: %v, want the next to be one", err)
		}
	})
}

// One probe runs at a time, a panic ends one, and a call that began before the breaker
// opened does not close it.
func TestCircuitBreakerHasOneProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, answer := 0, make(chan error)
		run := middleware.Recover().Wrap(middleware.CircuitBreaker(1, time.Minute).Wrap(func(context.Context, *waybill.Envelope) error {
			calls++
			err := <-answer
			if err == nil {
				return nil
			}
			panic(err)
		}))
		call := func() <-chan error {
			done := make(chan error, 1)
			go func() { done <- run(t.Context(), waybill.NewEnvelope(plain{}, received)) }()
			synctest.Wait()
			return done
		}
		early, failing := call(), call()
		answer <- errDeclined // one of them fails, and opens it
		synctest.Wait()
		answer <- nil // the other one succeeds
		<-early
		<-failing
		if err := <-call(); !errors.Is(err, waybill.ErrUnavailable) {
			t.Errorf("a call that began before closed the breaker: %v", err)
		}
		time.Sleep(time.Minute)
		calls = 0
		probe, second := call(), call()
		if err := <-second; !errors.Is(err, waybill.ErrUnavailable) || calls != 1 {
			t.Errorf("beside a probe: %v after %d calls, want a refusal and one call", err, calls)
		}
		answer <- errDeclined
		<-probe
		time.Sleep(time.Minute)
		probe = call()
		answer <- nil
		if err := <-probe; err != nil {
			t.Errorf("after a probe that panicked: %v, want another probe", err)
		}
	})
}

func TestFailedProbeKeepsWhatSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &end{err: &waybill.HandlersError{Failed: []waybill.HandlerError{{Handler: "charge", Err: errDeclined}}, Succeeded: []string{"mail"}}}
		run := middleware.CircuitBreaker(1, time.Minute).Wrap(inner.run)
		env := waybill.NewEnvelope(plain{}, received)
		_ = run(t.Context(), env)
		time.Sleep(time.Minute)
		var several *waybill.HandlersError
		err := run(t.Context(), env)
		if !errors.As(err, &several) || len(several.Succeeded) != 1 || several.Failed[0].Handler != "charge" || !errors.Is(several.Failed[0].Err, waybill.ErrUnavailable) || !errors.Is(err, errDeclined) {
			t.Errorf("probe: %v, want the failure of charge as an outage, and mail as done", err)
		}
	})
}

func TestLimitsPanicOnSettingsWithoutSense(t *testing.T) {
	for name, fn := range map[string]func(){
		"no rate": func() { middleware.Throttle(0, 1) }, "no burst": func() { middleware.Throttle(1, 0) },
		"no failures": func() { middleware.CircuitBreaker(0, time.Second) }, "no pause": func() { middleware.CircuitBreaker(1, 0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			fn()
		}()
	}
}

func TestForAppliesToItsMessagesAlone(t *testing.T) {
	wrapped := 0
	mw := waybill.Middleware{Name: "count", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error { wrapped++; return next(ctx, env) }
	}}
	for _, tt := range []struct {
		name  string
		match func(*waybill.Envelope) bool
		env   *waybill.Envelope
		want  int
	}{
		{"the message", middleware.Message("plain"), waybill.NewEnvelope(plain{}, waybill.MessageName("plain")), 1},
		{"another message", middleware.Message("plain"), waybill.NewEnvelope(plain{}, waybill.MessageName("plainer")), 0},
		{"the transport", middleware.Transport("orders"), waybill.NewEnvelope(plain{}, received), 1},
		{"another transport", middleware.Transport("mail"), waybill.NewEnvelope(plain{}, received), 0},
		{"no transport", middleware.Transport(""), waybill.NewEnvelope(plain{}), 0},
	} {
		wrapped = 0
		inner := &end{err: errDeclined}
		run := middleware.For(tt.match, mw)
		if err := run.Wrap(inner.run)(t.Context(), tt.env); wrapped != tt.want || err != errDeclined || run.Name != "count" {
			t.Errorf("%s: %s applied %d times, %v; want count %d times, and the handler's error", tt.name, run.Name, wrapped, err, tt.want)
		}
	}
}

// While a service that a handler calls is away, its messages keep their retries, and the
// handlers that succeeded do not run again.
func TestOutageBehindABreakerCostsNoRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.NewDB()
		queue := db.Queue("orders")
		bus := waybill.NewBus("main", middleware.CircuitBreaker(3, 10*time.Second))
		bus.AddSender("orders", queue)
		bus.Route("*", "orders")
		var down atomic.Bool
		var calls atomic.Int64
		down.Store(true)
		first, second := map[int]int{}, map[int]int{}
		waybill.Handle(bus, "first", func(_ context.Context, m plain) error { first[m.N]++; return nil })
		waybill.Handle(bus, "second", func(_ context.Context, m plain) error {
			if calls.Add(1); down.Load() {
				return errDeclined
			}
			second[m.N]++
			return nil
		})
		const messages = 20
		for n := range messages {
			if _, err := bus.Dispatch(t.Context(), plain{n}); err != nil {
				t.Fatal(err)
			}
		}
		w, err := worker.New(bus, queue, worker.Config{Transport: "orders", Store: db, MaxRetries: 1, Concurrency: 1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		time.Sleep(5 * time.Minute)
		down.Store(false)
		if calls := calls.Load(); calls < 20 || calls > 35 {
			t.Errorf("%d calls in five minutes, want three and one each pause", calls)
		}
		time.Sleep(30 * time.Second)
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if n := len(db.DeadLetters("failed")); n > 0 || len(first) != messages || len(second) != messages {
			t.Errorf("%d dead letters, %d and %d of %d messages handled by the two handlers, want all by both", n, len(first), len(second), messages)
		}
		for n := range messages {
			if first[n] != 1 || second[n] != 1 {
				t.Errorf("message %d was handled %d and %d times, want once by each", n, first[n], second[n])
			}
		}
	})
}
