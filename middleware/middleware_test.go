package middleware_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/middleware"
)

var errDeclined = errors.New("declined")

type plain struct{ N int }

func (plain) MessageName() string { return "plain" }

// secret is a message whose body must not be seen, and whose N must not be 0.
type secret struct {
	Key  string
	Text string
	N    int
}

func (secret) MessageName() string    { return "secret" }
func (s secret) PartitionKey() string { return s.Key }
func (s secret) Validate() error {
	if s.N == 0 {
		return errDeclined
	}
	return nil
}

// pointed is a message that is checked by a pointer, and whose N must not be 0.
type pointed struct{ N int }

func (pointed) MessageName() string { return "pointed" }
func (p *pointed) Validate() error  { return secret{N: p.N}.Validate() }

var received = waybill.Received{Transport: "orders"}

func newID(t testing.TB) waybill.MessageID {
	t.Helper()
	id, err := waybill.NewMessageID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// end is the inner end of a chain of one middleware: it keeps its arguments.
type end struct {
	ctx context.Context
	env *waybill.Envelope
	err error
}

func (e *end) run(ctx context.Context, env *waybill.Envelope) error {
	e.ctx, e.env = ctx, env
	return e.err
}

func TestRecoverTurnsAPanicIntoAnError(t *testing.T) {
	run := middleware.Recover().Wrap(func(context.Context, *waybill.Envelope) error { panic("boom") })
	var panicked *waybill.PanicError
	if err := run(t.Context(), waybill.NewEnvelope(plain{})); !errors.As(err, &panicked) || panicked.Value != "boom" || !strings.Contains(string(panicked.Stack), "middleware_test.go") {
		t.Errorf("error = %v, want the panic with its stack", err)
	}
}

func TestLogSaysWhatHappenedAndNoBodies(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	id := newID(t)
	env := waybill.NewEnvelope(secret{Text: "hush"}, id, waybill.MessageName("secret"), received, waybill.Redelivery{Failures: 2})
	run := middleware.Log(log).Wrap((&end{err: errDeclined}).run)
	if err := run(t.Context(), env); !errors.Is(err, errDeclined) {
		t.Errorf("error = %v, want %v", err, errDeclined)
	}
	for _, want := range []string{`"level":"DEBUG"`, `"msg":"handled"`, `"id":"` + id.String(), `"message":"secret"`, `"transport":"orders"`, `"failures":2`, `"err":"declined"`, `"took":`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("log %s has no %s", &text, want)
		}
	}
	_ = run(t.Context(), waybill.Without[waybill.Received](env))
	if !strings.Contains(text.String(), `"msg":"dispatched"`) || strings.Contains(text.String(), "hush") {
		t.Errorf("log %s: want dispatched, and no body", &text)
	}
	if err := middleware.Log(nil).Wrap((&end{}).run)(t.Context(), env); err != nil {
		t.Errorf("without a log: %v, want nil", err)
	}
}

func TestTimeoutEndsTheContextAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		run := middleware.Timeout(time.Minute).Wrap(func(ctx context.Context, _ *waybill.Envelope) error {
			<-ctx.Done()
			return ctx.Err()
		})
		err := run(t.Context(), waybill.NewEnvelope(plain{}))
		if took := time.Since(start); took != time.Minute || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "longer than 1m0s") {
			t.Errorf("after %v: %v, want DeadlineExceeded after a minute, in words", took, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		err = run(ctx, waybill.NewEnvelope(plain{}))
		if took := time.Since(start); took != time.Second || strings.Contains(err.Error(), "longer than") {
			t.Errorf("with a deadline that is sooner, after %v: %v, want that one's error", took, err)
		}
		later, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		inner := &end{err: errDeclined}
		if err := middleware.Timeout(time.Minute).Wrap(inner.run)(later, waybill.NewEnvelope(plain{})); err != errDeclined {
			t.Errorf("error within the time = %v, want it unchanged", err)
		}
		if d, ok := inner.ctx.Deadline(); !ok || time.Until(d) > time.Minute {
			t.Errorf("deadline %v, %t, want the timeout's", d, ok)
		}
	})
	for _, d := range []time.Duration{0, -1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Timeout(%v) does not panic", d)
				}
			}()
			middleware.Timeout(d)
		}()
	}
}

func TestValidateRefusesForGood(t *testing.T) {
	inner := &end{}
	run := middleware.Validate().Wrap(inner.run)
	err := run(t.Context(), waybill.NewEnvelope(secret{Text: "hush"}))
	if !errors.Is(err, errDeclined) || !waybill.IsUnrecoverable(err) || inner.env != nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("invalid message: %v, want an unrecoverable error without the body, and nothing passed on", err)
	}
	if err := run(t.Context(), waybill.NewEnvelope(pointed{})); !errors.Is(err, errDeclined) || !waybill.IsUnrecoverable(err) || inner.env != nil {
		t.Errorf("invalid message, by a pointer: %v, want an unrecoverable error, and nothing passed on", err)
	}
	for _, msg := range []any{secret{N: 1}, pointed{N: 1}, plain{}, nil} {
		if err := run(t.Context(), waybill.NewEnvelope(msg)); err != nil || inner.env == nil {
			t.Errorf("%T: %v, want it passed on", msg, err)
		}
	}
}

func TestOrderedWantsAKeyAtDispatch(t *testing.T) {
	run := middleware.Ordered().Wrap((&end{}).run)
	for _, tt := range []struct {
		name string
		env  *waybill.Envelope
		ok   bool
	}{
		{"no key", waybill.NewEnvelope(plain{}), false},
		{"empty key", waybill.NewEnvelope(secret{}), false},
		{"key of the message", waybill.NewEnvelope(secret{Key: "k"}), true},
		{"stamp", waybill.NewEnvelope(plain{}, waybill.PartitionKey("k")), true},
		{"empty stamp over a key", waybill.NewEnvelope(secret{Key: "k"}, waybill.PartitionKey("")), false},
		{"received without a key", waybill.NewEnvelope(plain{}, received), true},
	} {
		if err := run(t.Context(), tt.env); (err == nil) != tt.ok {
			t.Errorf("%s: error %v, want one: %t", tt.name, err, !tt.ok)
		}
	}
}

// child is dispatched by a handler of plain.
type child struct{}

func (child) MessageName() string { return "child" }

func TestCorrelationFollowsTheConversation(t *testing.T) {
	for _, tt := range []struct {
		name         string
		parent, sent []waybill.Stamp
		correlation  string // empty means the parent's id
		causation    string
	}{
		{"first of a conversation", nil, nil, "", ""},
		{"later in a conversation", []waybill.Stamp{waybill.CorrelationID("talk")}, nil, "talk", ""},
		{"set by the caller", []waybill.Stamp{waybill.CorrelationID("talk")}, []waybill.Stamp{waybill.CorrelationID("mine"), waybill.CausationID("me")}, "mine", "me"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bus := waybill.NewBus("main", middleware.Correlation())
			var got *waybill.Envelope
			waybill.Handle(bus, "child", func(ctx context.Context, _ child) error { got = waybill.EnvelopeFrom(ctx); return nil })
			waybill.Handle(bus, "plain", func(ctx context.Context, _ plain) error {
				_, err := bus.Dispatch(ctx, child{}, tt.sent...)
				return err
			})
			id := newID(t)
			stamps := append([]waybill.Stamp{id, waybill.MessageName("plain"), received}, tt.parent...)
			if err := bus.Handle(t.Context(), waybill.NewEnvelope(plain{}, stamps...)); err != nil {
				t.Fatal(err)
			}
			correlation, _ := waybill.Last[waybill.CorrelationID](got)
			causation, _ := waybill.Last[waybill.CausationID](got)
			wantCorrelation, wantCausation := tt.correlation, tt.causation
			if wantCorrelation == "" {
				wantCorrelation = id.String()
			}
			if wantCausation == "" {
				wantCausation = id.String()
			}
			if string(correlation) != wantCorrelation || string(causation) != wantCausation {
				t.Errorf("correlation %q, causation %q, want %q and %q", correlation, causation, wantCorrelation, wantCausation)
			}
		})
	}
}

// A message that gives a middleware nothing to do costs nothing.
func TestPassingThroughDoesNotAllocate(t *testing.T) {
	soon, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	quiet := slog.New(slog.NewTextHandler(nil, &slog.HandlerOptions{Level: slog.LevelInfo}))
	env := waybill.NewEnvelope(plain{}, newID(t), received)
	pass := func(context.Context, *waybill.Envelope) error { return nil }
	for _, tt := range []struct {
		mw  waybill.Middleware
		ctx context.Context
		env *waybill.Envelope
	}{
		{middleware.Recover(), t.Context(), env},
		{middleware.Log(quiet), t.Context(), env},
		{middleware.Log(nil), t.Context(), env},
		{middleware.Timeout(time.Hour), soon, env},
		{middleware.Validate(), t.Context(), env},
		{middleware.Correlation(), t.Context(), waybill.Without[waybill.Received](env)},
		{middleware.Ordered(), t.Context(), env},
		{middleware.Throttle(1e9, 1e6), t.Context(), env},
		{middleware.CircuitBreaker(1, time.Second), t.Context(), env},
		{middleware.For(middleware.Transport("mail"), middleware.Ordered()), t.Context(), env},
	} {
		run := tt.mw.Wrap(pass)
		if n := testing.AllocsPerRun(200, func() { _ = run(tt.ctx, tt.env) }); n != 0 {
			t.Errorf("%s allocates %v times for each message, want 0", tt.mw.Name, n)
		}
	}
}

// unnamed has its name by registration alone.
type unnamed struct{}

// sent is a transport that keeps the names of its messages.
type sent []string

func (s *sent) Send(_ context.Context, rec *waybill.Record) error {
	*s = append(*s, rec.Name)
	return nil
}

func TestDispatchedMessageIsKnownByItsName(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	passed := map[string]int{}
	count := func(name string) waybill.Middleware {
		return middleware.For(middleware.Message(name), waybill.Middleware{Name: "count", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
			return func(ctx context.Context, env *waybill.Envelope) error {
				passed[name]++
				if names := waybill.All[waybill.MessageName](env); len(names) != 1 {
					t.Errorf("%s has the names %v, want one", name, names)
				}
				return next(ctx, env)
			}
		}})
	}
	bus := waybill.NewBus("main", middleware.Log(log), count("plain"), count("registered"), count("secret"))
	waybill.Register[unnamed](bus.Types(), "registered")
	var out sent
	bus.AddSender("out", &out)
	bus.Route("registered", "out")
	waybill.HandleQuery(bus, "length", func(_ context.Context, m secret) (int, error) { return len(m.Text), nil })
	waybill.Handle(bus, "in place", func(ctx context.Context, _ plain) error {
		if names := waybill.All[waybill.MessageName](waybill.EnvelopeFrom(ctx)); len(names) != 1 {
			t.Errorf("a message handled in place has the names %v, want one", names)
		}
		_, err := bus.Dispatch(ctx, waybill.NewEnvelope(unnamed{}, waybill.MessageName("stale"), waybill.UpcastFrom("older")))
		return err
	})
	if _, err := bus.Dispatch(t.Context(), plain{}); err != nil {
		t.Fatal(err)
	}
	if n, err := waybill.Query[int](t.Context(), bus, secret{Text: "four"}); n != 4 || err != nil {
		t.Errorf("Query = %d, %v, want 4", n, err)
	}
	for _, name := range []string{"plain", "registered", "secret"} {
		if passed[name] != 1 || strings.Count(text.String(), " message="+name) != 1 {
			t.Errorf("%s passed its middleware %d times, want once, and one line of the log", name, passed[name])
		}
	}
	if len(out) != 1 || out[0] != "registered" {
		t.Errorf("sent %v, want one message under its name", out)
	}
}
