package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
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
