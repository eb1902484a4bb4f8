package wayamqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

func (b *broker) consumer(cfg Config) *Consumer {
	b.Helper()
	cfg.URL = cmp.Or(cfg.URL, b.url)
	cfg.Queue = cmp.Or(cfg.Queue, "orders")
	c, err := NewConsumer(cfg)
	b.must(err)
	b.Cleanup(func() { _ = c.Close() })
	return c
}

// fill publishes messages with the given keys and bodies from 0 on.
func (b *broker) fill(keys ...string) {
	b.Helper()
	p := b.publisher(Config{URL: b.url, Queue: "orders", KeyHeader: true})
	items := records("order.placed", len(keys))
	for i := range items {
		items[i].Record.Key = keys[i]
	}
	for i, err := range publishAll(within(b, 20*time.Second), b, p, items) {
		if err != nil {
			b.Fatalf("item %d: %v", i, err)
		}
	}
	b.must(p.Close())
}

// receive gets exactly n deliveries, in as many calls as it takes.
func receive(tb testing.TB, c *Consumer, n int) (ds []*waybill.Delivery) {
	tb.Helper()
	ctx := within(tb, 20*time.Second)
	for len(ds) < n {
		more, err := c.Receive(ctx, n-len(ds))
		if err != nil {
			tb.Fatalf("after %d of %d: %v", len(ds), n, err)
		}
		ds = append(ds, more...)
	}
	return ds
}

// stock waits until c holds n deliveries, buffered or in flight.
func stock(tb testing.TB, c *Consumer, n int) {
	tb.Helper()
	held := 0
	for range 6000 {
		s, err := c.connected(within(tb, 10*time.Second))
		if err != nil {
			tb.Fatal(err)
		}
		c.mu.Lock()
		held = s.held
		c.mu.Unlock()
		if held == n {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	tb.Fatalf("%d deliveries came, want %d", held, n)
}

// nothing fails the test when something can be received.
func nothing(tb testing.TB, c *Consumer) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 100*time.Millisecond)
	defer cancel()
	if ds, err := c.Receive(ctx, 100); !errors.Is(err, context.DeadlineExceeded) {
		tb.Fatalf("received %s, %v, want nothing", bodies(ds), err)
	}
}

// bodies returns the bodies of ds, separated by spaces.
func bodies(ds []*waybill.Delivery) string {
	texts := make([]string, len(ds))
	for i, d := range ds {
		texts[i] = string(d.Record.Body)
	}
	return strings.Join(texts, " ")
}

func want(tb testing.TB, ds []*waybill.Delivery, texts string) {
	tb.Helper()
	if got := bodies(ds); got != texts {
		tb.Fatalf("received %q, want %q", got, texts)
	}
}

func TestRecordArrivesAsItWasDispatched(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	p := b.publisher(Config{Queue: "orders", KeyHeader: true})
	sent := record("order.placed", 1)
	sent.Key, sent.ContentType, sent.Body = "customer-7", "application/x-thing", []byte("\x00\xff raw \n")
	sent.Headers = map[string]string{"tenant": "acmé", waybill.HeaderCorrelationID: "c", waybill.HeaderCausationID: "d", waybill.HeaderIdempotencyKey: "k"}
	sent.DispatchedAt, _ = madeAt(sent.ID) // the message carries no more digits
	b.must(p.Send(within(t, 10*time.Second), sent))
	d := receive(t, b.consumer(Config{}), 1)[0]
	if got, want := fmt.Sprintf("%+v", *d.Record), fmt.Sprintf("%+v", *sent); got != want || d.Failures != 0 {
		t.Errorf("got  %s (%d failures)\nwant %s", got, d.Failures, want)
	}
}

func TestKeyIsHeldBackWhileOneIsInFlight(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	b.fill("a", "a", "b", "", "", "a")
	c := b.consumer(Config{})
	stock(t, c, 6)
	first := receive(t, c, 1)
	want(t, first, "0")
	others := receive(t, c, 3)
	want(t, others, "2 3 4")
	nothing(t, c)
	b.must(c.Ack(t.Context(), first...))
	want(t, receive(t, c, 2), "1 5")
}

func TestKeyOfTheBodyHoldsBackToo(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	b.fill("", "", "")
	c := b.consumer(Config{KeyOf: func(rec *waybill.Record) string { return rec.Name }})
	ds := receive(t, c, 1)
	want(t, ds, "0")
	if ds[0].Record.Key != "order.placed" {
		t.Errorf("key %q", ds[0].Record.Key)
	}
	nothing(t, c)
}

func TestRetryComesAgainInPlaceAfterItsDelay(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	b.fill("a", "a", "b")
	c := b.consumer(Config{})
	stock(t, c, 3)
	ds := receive(t, c, 3)
	want(t, ds, "0 1 2")
	d := ds[0]
	d.Record.Headers = map[string]string{waybill.HeaderHandledBy: "billing"}
	start := time.Now()
	b.must(c.Retry(t.Context(), d, 300*time.Millisecond))
	b.must(c.Release(t.Context(), ds[1]))
	b.must(c.Ack(t.Context(), ds[2]))
	again := receive(t, c, 2)
	want(t, again, "0 1")
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("it came again after %v", took)
	}
	if again[0].Failures != 1 || again[0].Record.Headers[waybill.HeaderHandledBy] != "billing" || again[1].Failures != 0 {
		t.Errorf("failures %d and %d, headers %v", again[0].Failures, again[1].Failures, again[0].Record.Headers)
	}
	if err := c.Ack(t.Context(), d); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("Ack of what was given back: %v, want ErrLeaseLost", err)
	}
	b.must(c.Ack(t.Context(), again...))
	b.must(c.Close())
	b.awaitReady("orders", 0)
}

func TestReleaseComesAgainAtOnceInOrder(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	b.fill("a", "a", "a", "a")
	c := b.consumer(Config{})
	stock(t, c, 4)
	ds := receive(t, c, 4)
	want(t, ds, "0 1 2 3")
	b.must(c.Release(t.Context(), ds[3], ds[1]))
	nothing(t, c)
	b.must(c.Ack(t.Context(), ds[0]))
	b.must(c.Release(t.Context(), ds[2]))
	want(t, receive(t, c, 3), "1 2 3")
}

// B3: unacknowledged messages come again, whatever was acknowledged around them.
func TestAcknowledgementCoversOnlyWhatWasHandled(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	b.fill(make([]string, 100)...)
	c := b.consumer(Config{})
	ds := receive(t, c, 100)
	b.must(c.Ack(t.Context(), ds[50:]...))
	b.must(c.Ack(t.Context(), ds[:20]...))
	b.must(c.Retry(t.Context(), ds[20], time.Hour))
	b.must(c.Ack(t.Context(), ds[21:30]...))
	b.must(c.Ack(t.Context(), ds[35]))
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()
	b.must(s.ch.Qos(c.cfg.Prefetch, 0, false)) // when this is answered the broker has read the acknowledgements
	s.conn.cut(errors.New("the process died"))
	b.awaitReady("orders", 20)
	left := b.numbers("orders")
	wantBacklog := []int{20, 30, 31, 32, 33, 34}
	for n := 36; n < 50; n++ {
		wantBacklog = append(wantBacklog, n)
	}
	if fmt.Sprint(left) != fmt.Sprint(wantBacklog) {
		t.Errorf("left in the queue: %v, want %v", left, wantBacklog)
	}
}

func TestManyAcksLeaveNothing(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	b.fill(make([]string, 1000)...)
	c := b.consumer(Config{Prefetch: 64})
	for n := 0; n < 1000; {
		ds := receive(t, c, 1)
		more, err := c.Receive(within(t, time.Second), 7)
		if err == nil {
			ds = append(ds, more...)
		}
		n += len(ds)
		for i := len(ds) - 1; i >= 0; i-- { // against the order
			b.must(c.Ack(t.Context(), ds[i]))
		}
	}
	b.must(c.Close())
	b.awaitReady("orders", 0)
}

func TestLostConnectionIsReportedOnceAndThenMadeAnew(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	b.fill("a", "b", "a")
	c := b.consumer(Config{})
	stock(t, c, 3)
	old := receive(t, c, 1)
	want(t, old, "0")
	cut(c)
	if _, err := c.Receive(within(t, 10*time.Second), 1); !errors.Is(err, waybill.ErrUnavailable) {
		t.Fatalf("Receive over the cut: %v, want ErrUnavailable", err)
	}
	// The copy of 0 waits for the stale one: a key is not handled twice at once.
	other := receive(t, c, 1)
	want(t, other, "1")
	nothing(t, c)
	// The stale one is not acknowledged: its tag is that of another message now.
	err := c.Ack(t.Context(), append(old, other...)...)
	if !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("Ack of a stale delivery: %v, want ErrLeaseLost", err)
	}
	stock(t, c, 2) // 0 again, and 2 behind it
	again := receive(t, c, 2)
	want(t, again, "0 2")
	b.must(c.Ack(t.Context(), again...))
	b.must(c.Close())
	b.awaitReady("orders", 0)
}

// cut ends the connection of c as if the network had.
func cut(c *Consumer) {
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()
	_ = s.conn.raw.Close()
	<-s.closed
}

func TestRetriesGoOnAfterALostConnection(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	b.fill("waiting", "in flight", "released")
	c := b.consumer(Config{})
	ds := receive(t, c, 3)
	b.must(c.Retry(t.Context(), ds[0], 200*time.Millisecond)) // waits when the connection is lost
	cut(c)
	_, err := c.Receive(within(t, 10*time.Second), 3)
	if !errors.Is(err, waybill.ErrUnavailable) {
		t.Fatal(err)
	}
	again := receive(t, c, 1)
	want(t, again, "0")
	if again[0].Failures != 1 {
		t.Errorf("%d failures after the cut, want 1", again[0].Failures)
	}
	if err := c.Retry(t.Context(), ds[1], 0); !errors.Is(err, waybill.ErrLeaseLost) { // its copy is there
		t.Errorf("Retry of a stale delivery: %v, want ErrLeaseLost", err)
	}
	_ = c.Release(t.Context(), ds[2])
	again = receive(t, c, 2)
	want(t, again, "1 2")
	if again[0].Failures != 1 || again[1].Failures != 0 {
		t.Errorf("failures %d and %d, want 1 and 0", again[0].Failures, again[1].Failures)
	}
}

func TestMissingQueueIsAnErrorAtFirstAndWaitedForLater(t *testing.T) {
	b := newBroker(t)
	c := b.consumer(Config{})
	_, err := c.Receive(within(t, 10*time.Second), 1)
	if err == nil || errors.Is(err, waybill.ErrUnavailable) || !strings.Contains(err.Error(), "schema up --transports") {
		t.Fatalf("a queue nobody declared: %v", err)
	}
	b.queue("orders", nil)
	b.fill("a")
	receive(t, c, 1)
	_, err = b.ch.QueueDelete("orders", false, false, false)
	b.must(err)
	for n := range 3 {
		_, err = c.Receive(within(t, 30*time.Second), 1)
		if !errors.Is(err, waybill.ErrUnavailable) {
			t.Fatalf("a queue deleted under the consumer: %v, want ErrUnavailable", err)
		}
		// RabbitMQ 4.3 cancels a consumer for its consumer_timeout as well (M13).
		if n == 0 && !strings.Contains(err.Error(), "consumer_timeout") {
			t.Errorf("the subscription was ended: %v, want consumer_timeout among the causes", err)
		}
	}
	b.queue("orders", nil)
	b.fill("b")
	receive(t, c, 1)
}

// A key that fails has only itself to wait for, also with more messages than
// the prefetch.
func TestFailingKeyDoesNotFillThePrefetch(t *testing.T) {
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			b := newBroker(t)
			_, err := Declare(within(t, 10*time.Second), Config{URL: b.url, Queue: "orders", QueueType: kind})
			b.must(err)
			keys := make([]string, 61)
			for i := range keys {
				keys[i] = "hot"
			}
			keys[60] = "cold"
			b.fill(keys...)
			c := b.consumer(Config{Prefetch: 20})
			first := receive(t, c, 1)
			b.must(c.Retry(t.Context(), first[0], 3*time.Second))
			want(t, receive(t, c, 1), "60")
			var order []string
			for len(order) < 60 {
				ds := receive(t, c, 1)
				order = append(order, string(ds[0].Record.Body))
				b.must(c.Ack(t.Context(), ds...))
			}
			for i, body := range order {
				if body != strconv.Itoa(i) {
					t.Fatalf("the hot key came as %v", order)
				}
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.session.held != 1 { // 60 is still in flight
				t.Errorf("in the end the session holds %d, want 1", c.session.held)
			}
		})
	}
}

// A worker that unsubscribes from such a queue hands it to the next one, while
// it has messages of the key itself.
func TestSingleActiveConsumerStaysSubscribed(t *testing.T) {
	b := newBroker(t)
	cfg := Config{URL: b.url, Queue: "orders", SingleActiveConsumer: true, Prefetch: 4}
	_, err := Declare(within(t, 10*time.Second), cfg)
	b.must(err)
	cfg.SingleActiveConsumer = false // a consumer need not know
	b.fill("hot", "hot", "hot", "hot", "hot")
	active, standby := b.consumer(cfg), b.consumer(cfg)
	first := receive(t, active, 1)
	stock(t, active, 4)
	stock(t, standby, 0)
	b.must(active.Retry(t.Context(), first[0], time.Hour))
	nothing(t, standby)
	nothing(t, active)
}

// M1: when a consumer reconnects, the broker may not have requeued the messages of
// the lost connection yet and delivers later ones first, unless the queue has a
// single active consumer.
func TestReconnectedConsumerBeginsWithTheFirst(t *testing.T) {
	b := newBroker(t)
	_, err := Declare(within(t, 10*time.Second), Config{URL: b.url, Queue: "orders", KeyHeader: true})
	b.must(err)
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = "k"
	}
	b.fill(keys...)
	for n := range 30 {
		c := b.consumer(Config{Prefetch: 200})
		if ds := receive(t, c, 1); string(ds[0].Record.Body) != "0" {
			t.Fatalf("connection %d began with message %s", n, ds[0].Record.Body)
		}
		c.session.conn.cut(errors.New("the network is gone"))
	}
}

func TestCloseGivesBackWhatIsNotAcknowledged(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	b.fill("a", "b", "c")
	c := b.consumer(Config{})
	ds := receive(t, c, 2)
	b.must(c.Ack(t.Context(), ds[0]))
	waiting := make(chan error)
	go func() {
		_ = receive(t, c, 1)
		_, err := c.Receive(context.Background(), 1)
		waiting <- err
	}()
	b.awaitReady("orders", 0)
	b.must(c.Close())
	if err := <-waiting; !errors.Is(err, errConsumerClosed) {
		t.Errorf("Receive over Close: %v", err)
	}
	b.awaitReady("orders", 2)
	if got := b.numbers("orders"); fmt.Sprint(got) != "[1 2]" {
		t.Errorf("left in the queue: %v", got)
	}
	if _, err := c.Receive(t.Context(), 1); !errors.Is(err, errConsumerClosed) {
		t.Errorf("Receive after Close: %v", err)
	}
	if err := c.Ack(t.Context(), ds[1]); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("Ack after Close: %v", err)
	}
}

// warnings collects a log and counts phrases in it.
type warnings struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *warnings) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *warnings) count(words string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(w.text.String(), words)
}

func TestConsumerSaysThatItsQueueDoesNotKeepTheOrder(t *testing.T) {
	const words = "the queue does not keep the order of keys"
	for _, tt := range []struct {
		name     string
		declare  Config
		cfg      Config
		key      string
		warnings int
	}{
		{"several consumers", Config{}, Config{}, "k", 1},
		{"a single active one", Config{KeyHeader: true}, Config{}, "k", 0},
		{"without keys", Config{}, Config{}, "", 0},
		{"several are wanted", Config{}, Config{CompetingConsumers: true}, "k", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBroker(t)
			tt.declare.URL, tt.declare.Queue = b.url, "orders"
			_, err := Declare(within(t, 10*time.Second), tt.declare)
			b.must(err)
			b.fill(tt.key, tt.key)
			var log warnings
			tt.cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
			c := b.consumer(tt.cfg)
			stock(t, c, 2)
			eventually(t, "it has warned", func() bool { return log.count(words) == tt.warnings })
			b.must(c.Close())
			if got := log.count(words); got != tt.warnings {
				t.Errorf("%d warnings, want %d: %s", got, tt.warnings, log.text.String())
			}
			if asked := tt.key != "" && !tt.cfg.CompetingConsumers; c.checkedOrder != asked {
				t.Errorf("it asked the broker: %t, want %t", c.checkedOrder, asked)
			}
		})
	}
}

// M3: RabbitMQ 4 drops a message that was returned twenty times.
func TestConsumerSaysThatAMessageIsNearItsDeliveryLimit(t *testing.T) {
	b := newBroker(t)
	_, err := Declare(within(t, 10*time.Second), Config{URL: b.url, Queue: "orders"})
	b.must(err)
	b.fill("", "")
	var log warnings
	for n := range manyDeliveries + 2 {
		c := b.consumer(Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		stock(t, c, 2)
		b.must(c.Close())
		b.awaitReady("orders", 2)
		want := 0
		if n > manyDeliveries {
			want = 1
		}
		if got := log.count("delivered and given back many times"); got != want {
			t.Fatalf("after %d returns: %d warnings, want %d: %s", n, got, want, log.text.String())
		}
	}
	if log.count(`set_policy`) != 1 {
		t.Errorf("it does not say what to do: %s", log.text.String())
	}
}

// A suspended consumer has no connection, and so no message, until it receives again: in
// order, with their failures, and without an error.
func TestSuspendedConsumerHoldsNothing(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", amqp.Table{"x-single-active-consumer": true})
	b.fill("a", "b", "a", "c")
	c := b.consumer(Config{})
	stock(t, c, 4)
	ds := receive(t, c, 3)
	want(t, ds, "0 2 1")
	b.must(c.Ack(t.Context(), ds[0]))
	b.must(c.Retry(t.Context(), ds[1], 0))
	b.must(c.Release(t.Context(), ds[2]))
	b.must(c.Suspend(t.Context()))
	b.awaitReady("orders", 3)
	b.must(c.Connect(t.Context())) // as a readiness probe does
	c.mu.Lock()
	if c.session != nil {
		t.Error("a probe has connected a suspended consumer")
	}
	c.mu.Unlock()
	other := b.consumer(Config{}) // the queue has no active consumer
	want(t, receive(t, other, 1), "1")
	b.must(other.Close())
	ds = receive(t, c, 1)
	stock(t, c, 3)
	again := append(ds, receive(t, c, 2)...)
	want(t, again, "1 2 3")
	if again[0].Failures != 0 || again[1].Failures != 1 {
		t.Errorf("%d and %d failures after the suspension, want 0 and 1", again[0].Failures, again[1].Failures)
	}
}
