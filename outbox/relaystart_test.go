package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
)

// A dialled publisher has a broker that may be away.
type dialled struct {
	*broker
	away atomic.Pointer[error]
}

func (d *dialled) leave(err error) { d.away.Store(&err) }

func (d *dialled) Connect(context.Context) error {
	if err := d.away.Load(); err != nil {
		return *err
	}
	return nil
}

func (d *dialled) Traits() outbox.PublisherTraits {
	return outbox.PublisherTraits{
		To:      []slog.Attr{slog.String("broker", "amqp://mq/"), slog.String("exchange", "orders")},
		Address: func(rec *waybill.Record) (exchange, routingKey string) { return "orders", rec.Name },
	}
}

// lines returns the lines of a log without their times, and empties it.
func lines(out *bytes.Buffer) string {
	var all []string
	for line := range strings.Lines(out.String()) {
		_, line, _ = strings.Cut(line, " ")
		all = append(all, line)
	}
	out.Reset()
	return strings.Join(all, "")
}

// A relay without messages logs its destination, and notices a broker that ends and
// comes back: a line each, and reports for operators.
func TestIdleRelayNoticesItsBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		y := newYard(t)
		to := &dialled{broker: y.broker}
		y.cfg.Log = slog.New(slog.NewTextHandler(&out, nil))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- newRelay(t, y.db, to, y.cfg).Run(ctx) }()
		want := func(wanted string) {
			t.Helper()
			synctest.Wait()
			if got := lines(&out); got != wanted {
				t.Errorf("after %v the log has\n%s\nwant\n%s", time.Since(y.broker.start), got, wanted)
			}
		}
		time.Sleep(time.Minute)
		want(`level=INFO msg="relay started" transport=default broker=amqp://mq/ exchange=orders` + "\n")
		refused := fmt.Errorf("%w: connection refused", waybill.ErrUnavailable)
		to.leave(refused)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		got := lines(&out)
		if !strings.HasPrefix(got, `level=WARN msg="the broker is not available, the relay will try again" what=broker transport=default`) || strings.Count(got, "\n") != 1 {
			t.Errorf("10 s after the broker's end the log has\n%s\nwant one warning", got)
		}
		time.Sleep(time.Minute)
		want("")
		to.away.Store(nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := lines(&out); !strings.HasPrefix(got, `level=INFO msg="outage over" what=broker transport=default failures=`) || strings.Count(got, "\n") != 1 {
			t.Errorf("5 s after the broker is back the log has\n%s\nwant the end of the outage", got)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want("")
	})
}

// A reported store keeps the reports of its relays.
type reported struct {
	outbox.Store
	mu      sync.Mutex
	reports []outbox.Report
	times   []time.Time
}

func (s *reported) Traits() outbox.StoreTraits {
	traits := s.Store.Traits()
	traits.KeepsReports = true
	return traits
}

func (s *reported) Report(_ context.Context, r outbox.Report) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports, s.times = append(s.reports, r), append(s.times, time.Now())
	return nil
}

// A relay without messages after a lost connection would be taken for dead if it did not
// report: it repeats the problem until that is over.
func TestIdleRelayReportsAfterALostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		store := &reported{Store: y.db}
		to := &breaking{broker: y.broker}
		y.cfg.PublishDeadline = 30 * time.Second
		y.dispatch(step{"a", 1})
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
		defer stop()
		if err := newRelay(t, store, to, y.cfg).Run(ctx); err != nil {
			t.Fatal(err)
		}
		y.wantConfirmed("a1")
		problems := 0
		for i, r := range store.reports {
			if r.Problem != "" {
				problems++
			}
			if i > 0 && store.times[i].Sub(store.times[i-1]) > 10*time.Second {
				t.Errorf("no report for %v, want one each 5 s", store.times[i].Sub(store.times[i-1]))
			}
		}
		if n := len(store.reports); problems == 0 || n < 30 || store.reports[n-1].Problem != "" {
			t.Errorf("%d of %d reports have a problem, want some of more than 30, and not the last", problems, n)
		}
	})
}

// A breaking publisher loses its connection with the first message in flight.
type breaking struct {
	*broker
	once sync.Once
}

func (b *breaking) Publish(ctx context.Context, items []outbox.Item, results chan<- outbox.Result) {
	lost := false
	b.once.Do(func() { lost = true })
	if !lost {
		b.broker.Publish(ctx, items, results)
		return
	}
	for _, item := range items {
		results <- outbox.Result{Seq: item.Seq, Err: &outbox.ConnectionLostError{Err: errors.New("cut")}}
	}
}

// A broker that is away when the relay starts is waited for. Drain does not wait.
func TestRelayStartsBeforeItsBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missing := errors.New("exchange orders: it does not exist")
		y := newYard(t)
		to := &dialled{broker: y.broker}
		to.leave(missing)
		y.dispatch(step{"a", 1})
		y.cfg.Drain = true
		var broken *outbox.BrokerError
		if err := newRelay(t, y.db, to, y.cfg).Run(t.Context()); !errors.As(err, &broken) || !errors.Is(err, missing) {
			t.Errorf("Run with Drain = %v, want a *BrokerError with %v", err, missing)
		}
		y.wantPending("a1")
		y.cfg.Drain = false
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- newRelay(t, y.db, to, y.cfg).Run(ctx) }()
		time.Sleep(time.Minute)
		y.wantPending("a1")
		to.away.Store(nil)
		time.Sleep(3 * time.Second)
		y.wantConfirmed("a1")
		for _, e := range y.events.of(waybill.Published) {
			if e.Exchange != "orders" || e.RoutingKey == "" {
				t.Errorf("published to exchange %q by %q, want orders and the name", e.Exchange, e.RoutingKey)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A name that no outbox has registered is likely to be misspelt.
func TestRelayWarnsOfANameThatNothingDispatchesTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		y := newYard(t)
		y.cfg.Log, y.cfg.Transport, y.cfg.Drain = slog.New(slog.NewTextHandler(&out, nil)), "defualt", true
		if err := newRelay(t, y.db, y.broker, y.cfg).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := "level=INFO msg=\"relay started\" transport=defualt\n" +
			"level=WARN msg=\"nothing dispatches to this transport: no outbox has registered its name yet\" transport=defualt known=[default]\n"
		if got := lines(&out); got != want {
			t.Errorf("the log has\n%s\nwant\n%s", got, want)
		}
		out.Reset()
		y.cfg.Log = slog.New(slog.NewJSONHandler(&out, nil))
		if err := newRelay(t, memory.NewDB(), y.broker, y.cfg).Run(t.Context()); err != nil || !strings.Contains(out.String(), `"known":[]`) {
			t.Errorf("Run on a database without outboxes = %v with the log\n%s\nwant no known transports", err, &out)
		}
	})
}

// A relay that has ended in an outage, and is run again, has the next one in the log.
func TestOutageOfASecondRunIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		y := newYard(t)
		y.cfg.Log = slog.New(slog.NewTextHandler(&out, nil))
		y.dispatch(step{"k", 1})
		y.broker.refuse = func(string) error { return fmt.Errorf("%w: connection reset", waybill.ErrUnavailable) }
		relay := newRelay(t, y.db, y.broker, y.cfg)
		for range 2 {
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			if err := relay.Run(ctx); err != nil {
				t.Error(err)
			}
			stop()
		}
		if got := lines(&out); strings.Count(got, "WARN") != 2 {
			t.Errorf("the log has\n%s\nwant a warning of each run", got)
		}
	})
}

// Of an outage that all loops of a busy relay meet the log has two lines.
func TestOutageOfABusyRelayIsTwoLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		y := newYard(t)
		to := &dialled{broker: y.broker}
		y.cfg.Log, y.cfg.Batch = slog.New(slog.NewTextHandler(&out, nil)), 1
		for n := range 20 {
			y.dispatch(step{fmt.Sprint("k", n), 1})
		}
		gone := fmt.Errorf("%w: connection reset", waybill.ErrUnavailable)
		down := true
		y.broker.refuse = func(string) error {
			if down {
				return gone
			}
			return nil
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- newRelay(t, y.db, to, y.cfg).Run(ctx) }()
		time.Sleep(time.Minute)
		y.broker.mu.Lock()
		down = false
		y.broker.mu.Unlock()
		time.Sleep(time.Minute)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := lines(&out); strings.Count(got, "\n") != 3 || strings.Count(got, "WARN") != 1 || strings.Count(got, `msg="outage over"`) != 1 {
			t.Errorf("the log has\n%s\nwant the start, a warning and the end of the outage", got)
		}
		y.wantPending("")
	})
}

// All messages in flight on a connection that a message ended are one line of the log.
func TestSuspectsOfABatchAreOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		y := newYard(t)
		y.cfg.Log = slog.New(slog.NewTextHandler(&out, nil))
		for n := range 20 {
			y.dispatch(step{fmt.Sprint("k", n), 1})
		}
		cut := make(map[string]bool)
		y.broker.refuse = func(key string) error {
			if cut[key] {
				return nil
			}
			cut[key] = true
			return &outbox.ConnectionLostError{Err: errors.New("message too large"), CausedByMessage: true}
		}
		stop := y.start(y.db)
		time.Sleep(time.Minute)
		stop()
		if got := lines(&out); strings.Count(got, "WARN") != 2 || !strings.Contains(got, `msg="messages were in flight on a lost connection" transport=default messages=20`) {
			t.Errorf("the log has\n%s\nwant one warning of all, and one of the outage", got)
		}
		y.wantPending("")
	})
}

// A statement that the database refuses, as after a lost privilege, is the problem of a report.
func TestRefusalOfTheDatabaseIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		refused := errors.New("permission denied for table waybill_outbox")
		store := &reported{Store: &scripted{Store: y.db, settle: func() error { return refused }}}
		y.dispatch(step{"a", 1})
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := newRelay(t, store, y.broker, y.cfg).Run(ctx); err != nil {
			t.Fatal(err)
		}
		for i, r := range store.reports {
			if since := store.times[i].Sub(store.times[0]); since > 5*time.Second && !r.Ended && !strings.Contains(r.Problem, refused.Error()) {
				t.Errorf("after %v the problem is %q, want %q", since, r.Problem, refused)
			}
		}
		if n := len(store.reports); n < 5 {
			t.Errorf("%d reports in a minute", n)
		}
	})
}
