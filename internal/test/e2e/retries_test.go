package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/worker"
)

// A handling is a worker on the queue handled, with the database as its store.
type handling struct {
	database
	broker string
	cfg    worker.Config
	fail   func(m counted) error // runs ahead of the effect
}

func (h handling) run(ctx context.Context) error {
	bus := waybill.NewBus("main", waybill.Middleware{Name: "fail", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			m, _ := env.Message().(counted)
			if err := h.fail(m); err != nil {
				return err
			}
			return next(ctx, env)
		}
	}})
	h.handle(bus, func() {})
	c, err := wayamqp.NewConsumer(wayamqp.Config{URL: h.broker, Queue: handled, Prefetch: 40, Heartbeat: quickHeartbeat})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	cfg := h.cfg
	cfg.Transport, cfg.Store, cfg.Prefetch, cfg.Log = handled, h.database, 40, slog.New(slog.NewTextHandler(os.Stderr, nil))
	cfg.Retry = waybill.Backoff{Delay: 200 * time.Millisecond, Multiplier: 2, MaxDelay: 2 * time.Second}
	w, err := worker.New(bus, c, cfg)
	if err != nil {
		return err
	}
	ctx, end := cfg.Process.Context(ctx)
	defer end()
	return w.Run(ctx)
}

// start runs the worker until the function that it returns is called.
func (h handling) start(tb testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				tb.Errorf("Run = %v", err)
			}
		})
	}
	tb.Cleanup(stop)
	return stop
}

var errDown = errors.New("the warehouse is down")

// isBad reports whether m is the third message of a key bad-*.
func isBad(m counted) bool { return strings.HasPrefix(m.Key, "bad-") && m.N == 3 }

// retrying fails with the third message of each key bad-* until a file exists.
func retrying(ctx context.Context, db database, r role) error {
	return handling{db, r.Broker, worker.Config{MaxRetries: 1000}, func(m counted) error {
		if !isBad(m) {
			return nil
		}
		if _, err := os.Stat(r.Mended); err != nil {
			return errDown
		}
		return nil
	}}.run(ctx)
}

// maxCrashes is the bound in exiting: the lease of a dead process has to end each time.
const maxCrashes = 2

// exiting ends the process with the third message without a key.
func exiting(ctx context.Context, db database, r role) error {
	return handling{db, r.Broker, worker.Config{MaxCrashes: maxCrashes}, func(m counted) error {
		if m.Key == "" && m.N == 3 {
			os.Exit(3)
		}
		return nil
	}}.run(ctx)
}

// orderedQueue declares a quorum queue with a single active consumer, bound to all. It has
// no delivery limit on any version of RabbitMQ.
func (s *stack) orderedQueue() {
	s.Helper()
	_, err := wayamqp.Declare(s.Context(), wayamqp.Config{URL: s.broker, Queue: handled, SingleActiveConsumer: true, Bindings: []wayamqp.Binding{{Exchange: transport, Key: "#"}}})
	s.must(err)
}

// limitedQueue is orderedQueue with a delivery limit.
func (s *stack) limitedQueue(limit int) {
	s.Helper()
	_, err := s.ch.QueueDeclare(handled, true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true, "x-delivery-limit": limit})
	s.must(err)
	s.must(s.ch.QueueBind(handled, "#", transport, false, nil))
}

// The third of ten messages of some keys fails until it is mended. The active worker is
// killed meanwhile, more than once: its successor keeps the order of each key, and loses
// nothing. Nothing waits at the broker.
func TestKeysKeepTheirOrderThroughRetriesAndTakeovers(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		s.orderedQueue()
		s.patientRelay()
		r := role{Place: withRetries, Mended: filepath.Join(t.TempDir(), "mended")}
		workers := []*process{s.start(r), s.start(r)}
		keys := append(keyNames("bad", 5), keyNames("good", 30)...)
		for range 10 {
			s.dispatch(keys, 1)
		}
		for range 3 { // kills, while keys wait for their retries
			s.eventually(patience, "keys wait for a retry", func() bool {
				return s.count("SELECT count(*) FROM waybill_retry") > 0
			})
			time.Sleep(1500 * time.Millisecond)
			workers[0].signal(syscall.SIGKILL)
			workers = append(workers[1:], s.start(r))
		}
		s.must(os.WriteFile(r.Mended, nil, 0o600))
		s.eventually(patience, "good keys are handled while bad ones wait", func() bool {
			return s.count("SELECT count(*) FROM effects WHERE k LIKE 'good-%'") == 300
		})
		s.oneEffect()
		s.inOrder()
		s.noFailures()
	})
}

// noFailures waits until the store is empty.
func (s *stack) noFailures() {
	s.Helper()
	s.eventually(patience, "no failures are left", func() bool {
		return s.count("SELECT count(*) FROM waybill_retry")+s.count("SELECT count(*) FROM waybill_failed")+s.count("SELECT count(*) FROM waybill_failed_attempt") == 0
	})
}

// A quorum queue drops a message that was returned more often than its delivery limit. A
// worker returns what it has not begun whenever it stops.
func TestRestartsDoNotUseUpTheDeliveryLimit(t *testing.T) {
	onOne(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		s.limitedQueue(20)
		s.patientRelay()
		s.dispatch([]string{"bad-0000", "good-0000"}, 50)
		var mended atomic.Bool
		w := handling{s.open(s.database), s.broker, worker.Config{MaxRetries: 1000}, func(m counted) error {
			time.Sleep(20 * time.Millisecond)
			if isBad(m) && !mended.Load() {
				return errDown
			}
			return nil
		}}
		for range 25 {
			had := s.count("SELECT count(*) FROM effects")
			stop := w.start(t)
			s.eventually(patience, "something is handled", func() bool {
				return s.count("SELECT count(*) FROM effects") > min(had, 51) // 50 good ones and 2 bad ones
			})
			stop()
		}
		mended.Store(true)
		w.start(t)
		s.oneEffect()
		s.inOrder()
		s.noFailures()
	})
}

func TestMessageThatEndsItsProcessIsADeadLetter(t *testing.T) {
	onOne(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		s.orderedQueue()
		s.patientRelay()
		s.dispatch(append(keyNames("good", 10), ""), 5)
		r := role{Place: withExit}
		p, ends := s.start(r), 0
		s.eventually(3*patience, "the message is a dead letter", func() bool {
			select {
			case <-p.done:
				ends++
				p = s.start(r)
			default:
			}
			return s.count("SELECT count(*) FROM waybill_failed WHERE last_error LIKE '%process ended%' AND state = 'failed'") == 1
		})
		if ends < maxCrashes || ends > maxCrashes+2 { // the first ones, without certainty, are not counted
			t.Errorf("its process ended %d times, want %d to %d", ends, maxCrashes, maxCrashes+2)
		}
		s.eventually(patience, "the others are handled", func() bool {
			return s.count("SELECT count(*) FROM effects") == 5*11-1 && s.count("SELECT count(*) FROM waybill_retry") == 0
		})
		s.inOrder()
	})
}

// declarations returns the exchanges, queues, bindings and policies of a broker.
func declarations(tb testing.TB, api string) string {
	tb.Helper()
	var of struct{ Exchanges, Queues, Bindings, Policies []json.RawMessage }
	if err := json.Unmarshal(management(tb, api, "GET", "/api/definitions", ""), &of); err != nil {
		tb.Fatal(err)
	}
	var all []string
	for _, one := range slices.Concat(of.Exchanges, of.Queues, of.Bindings, of.Policies) {
		all = append(all, string(one))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// Messages that wait for a retry wait in the database, and so do dead letters: the broker
// has no part in it, and nothing is declared there.
func TestBrokerRestartChangesNothingForRetries(t *testing.T) {
	onOne(t, func(t *testing.T, on *kind) {
		rabbit := testserver.StartRabbitMQ(t, nil)
		s := on.stackAt(t, on.fresh(t), rabbit.URL())
		s.orderedQueue()
		rabbit.Settle()
		s.patientRelay()
		declared := declarations(t, rabbit.API())
		if !strings.Contains(declared, `"`+handled+`"`) {
			t.Fatalf("the queue is missing at the broker:\n%s", declared)
		}
		keys := append(append(keyNames("bad", 5), keyNames("good", 10)...), "")
		s.dispatch(keys, 6)
		var mended atomic.Bool
		handling{s.open(s.database), s.broker, worker.Config{MaxRetries: 1000}, func(m counted) error {
			switch {
			case mended.Load():
				return nil
			case m.Key == "" && m.N == 3:
				return waybill.Unrecoverable(errDown)
			case isBad(m):
				return errDown
			}
			return nil
		}}.start(t)
		waiting := func(want int) {
			t.Helper()
			s.eventually(patience, fmt.Sprint(want, " messages wait"), func() bool { return s.count("SELECT count(*) FROM waybill_retry") == want })
		}
		waiting(5 * 4)
		attempts := s.count("SELECT count(*) FROM waybill_failed_attempt")
		rabbit.Stop()
		s.eventually(patience, "retries go on without a broker", func() bool {
			return s.count("SELECT count(*) FROM waybill_failed_attempt") >= attempts+10
		})
		rabbit.Start()
		s.look()
		waiting(5 * 4)
		s.dispatch(keys, 4)
		waiting(5 * 8)
		s.eventually(patience, "the unrecoverable message is a dead letter", func() bool {
			return s.count("SELECT count(*) FROM waybill_failed WHERE state = 'failed'") == 1
		})
		letters, err := s.db.Failed(t.Context(), admin.FailedQuery{})
		s.must(err)
		unchanged := func(while string) {
			t.Helper()
			if now := declarations(t, rabbit.API()); now != declared {
				t.Errorf("the broker has\n%s\n%s, and had\n%s", now, while, declared)
			}
		}
		unchanged("while messages wait for retries")
		mended.Store(true)
		_, err = s.db.RetryFailed(t.Context(), letters[0].Number)
		s.must(err)
		s.oneEffect()
		s.inOrder()
		s.noFailures()
		unchanged("after retries and a replay")
	})
}

// inOrder fails the test unless the effects of each key came in order.
func (s *stack) inOrder() {
	s.Helper()
	if n := s.count("SELECT count(*) FROM effects a JOIN effects b ON a.k = b.k AND a.k <> '' AND a.n < b.n AND a.seq > b.seq"); n != 0 {
		s.Errorf("%d pairs of messages of a key were handled in the wrong order", n)
	}
}
