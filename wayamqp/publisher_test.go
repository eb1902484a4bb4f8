package wayamqp

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

func TestPublishedIsStoredInOrder(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	p := b.publisher(Config{Exchange: "events"})
	for i, err := range publishAll(within(t, 20*time.Second), t, p, records("order.placed", 1000)) {
		if err != nil {
			t.Fatalf("item %d: %v", i, err)
		}
	}
	for want, got := range b.numbers("orders") {
		if got != want {
			t.Fatalf("message %d is number %d", want, got)
		}
	}
}

// Whatever the broker confirms, a message it could not route is lost (A2).
func TestUnroutableIsNeverDelivered(t *testing.T) {
	b := newBroker(t)
	b.must(b.ch.ExchangeDeclare("events", "topic", true, false, false, false, nil))
	p := b.publisher(Config{Exchange: "events"})
	const all, window = 20000, 256
	items, results := records("order.placed", all), make(chan outbox.Result, window)
	ctx := within(t, time.Minute)
	delivered, open := 0, 0
	for next := 0; next < all || open > 0; {
		if n := min(window-open, all-next); n > 0 {
			p.Publish(ctx, items[next:next+n], results)
			next, open = next+n, open+n
		}
		r := <-results
		open--
		var unroutable *outbox.UnroutableError
		switch {
		case r.Err == nil:
			delivered++
		case !errors.As(r.Err, &unroutable):
			t.Fatalf("item %d: %v", r.Seq, r.Err)
		case *unroutable != outbox.UnroutableError{Exchange: "events", RoutingKey: "order.placed", Reason: "312 NO_ROUTE: no queue is bound for it"}:
			t.Fatalf("item %d: %+v", r.Seq, unroutable)
		}
	}
	if delivered > 0 {
		t.Errorf("%d of %d unroutable messages were judged delivered", delivered, all)
	}
}

// Two publishes with one id are told apart by their routing keys: one is routed,
// one is not.
func TestReturnsAreMatchedByPublishNotByID(t *testing.T) {
	b := newBroker(t)
	b.topic("events")
	b.queue("orders", nil)
	b.must(b.ch.QueueBind("orders", "order.placed", "events", false, nil))
	p := b.publisher(Config{Exchange: "events"})
	items := append(records("order.placed", 1), records("order.lost", 1)...)
	items[1].Seq, items[1].Record.ID = 1, items[0].Record.ID
	for range 50 {
		errs := publishAll(within(t, 10*time.Second), t, p, items)
		var unroutable *outbox.UnroutableError
		if errs[0] != nil || !errors.As(errs[1], &unroutable) {
			t.Fatalf("routed: %v, not routed: %v", errs[0], errs[1])
		}
	}
}

// P3: a message returned and confirmed just before the channel's end was lost.
func TestReturnJustBeforeTheEndCounts(t *testing.T) {
	b := newBroker(t)
	b.must(b.ch.ExchangeDeclare("events", "topic", true, false, false, false, nil))
	p := b.publisher(Config{Exchange: "events"})
	conn, err := p.connected(within(t, 10*time.Second))
	b.must(err)
	raw, err := conn.conn.client.Channel()
	b.must(err)
	b.must(raw.Confirm(false))
	channel := newConfirmChannel(conn, raw) // not registered with conn, which resolves none of its confirmations
	results := make(chan outbox.Result, 1)
	batch := newPublishBatch(&p.cfg, results, 1)
	rec := record("order.placed", 1)
	msg, err := p.cfg.encode(amqp.Table{}, rec, "events", rec.Name, 0)
	b.must(err)
	channel.slots <- struct{}{}
	conn.conn.out.hold() // until send has returned
	publish := &publish{id: msg.MessageId, batch: batch, exchange: "events", key: rec.Name}
	channel.send(t.Context(), publish, msg)
	b.must(conn.conn.out.release())
	<-publish.confirm.Done()
	if lost := channel.end(nil); len(lost) > 0 {
		t.Errorf("%d are lost", len(lost))
	}
	var unroutable *outbox.UnroutableError
	if r := <-results; !errors.As(r.Err, &unroutable) {
		t.Errorf("returned, confirmed, and then the end: %v, want unroutable", r.Err)
	}
}

// goodOnes fails the test unless all items but one were delivered.
func goodOnes(t *testing.T, errs []error, except int) {
	t.Helper()
	for i, err := range errs {
		if i != except && err != nil {
			t.Fatalf("item %d: %v", i, err)
		}
	}
}

// One bad message among 300 spoils no other exchange, and is itself refused.
func TestMissingExchangeSpoilsOnlyItsOwn(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	p := b.publisher(Config{Exchange: "events", Routes: func(name string) (string, string) {
		if name == "bad" {
			return "missing", ""
		}
		return "", ""
	}})
	items := records("order.placed", 300)
	items[10].Record.Name = "bad"
	errs := publishAll(within(t, 10*time.Second), t, p, items)
	goodOnes(t, errs, 10)
	var unroutable *outbox.UnroutableError
	if !errors.As(errs[10], &unroutable) || unroutable.Exchange != "missing" || !strings.HasPrefix(unroutable.Reason, "404 NOT_FOUND") {
		t.Errorf("to a missing exchange: %v", errs[10])
	}
	if n := b.ready("orders"); n != 299 {
		t.Errorf("%d messages arrived, want 299", n)
	}

	b.topic("missing", "late") // the next call opens a channel anew
	if err := p.Send(within(t, 10*time.Second), items[10].Record); err != nil {
		t.Errorf("once the exchange is there: %v", err)
	}
}

// A message that would make the client library or the broker close the connection
// is refused before it is sent.
func TestOversizedIsRefusedUnsent(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	long := strings.Repeat("k", 300)
	var limit *waybill.LimitError
	var invalid *waybill.InvalidError
	for _, tt := range []struct {
		name string
		bad  func(*waybill.Record)
		as   any
		want string
	}{
		{"header size", func(r *waybill.Record) { r.Headers = map[string]string{"big": strings.Repeat("x", 200<<10)} }, &limit, "header size"},
		{"header name", func(r *waybill.Record) { r.Headers = map[string]string{long: "x"} }, &limit, "header name"},
		{"routing key", func(r *waybill.Record) { r.Name = "long" }, &limit, "routing key"},
		{"exchange", func(r *waybill.Record) { r.Name = "far" }, &limit, "exchange"},
		{"name", func(r *waybill.Record) { r.Name = long }, &limit, "message name"},
		{"content type", func(r *waybill.Record) { r.ContentType = long }, &limit, "content type"},
		{"correlation id", func(r *waybill.Record) { r.Headers = map[string]string{"x-correlation-id": long} }, &limit, "x-correlation-id"},
		{"CC", func(r *waybill.Record) { r.Headers = map[string]string{"CC": "elsewhere"} }, &invalid, "CC"},
		{"problem", func(r *waybill.Record) { r.Problem = &waybill.InvalidError{What: "headers"} }, &invalid, "headers"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := b.publisher(Config{Exchange: "events", Routes: func(name string) (string, string) {
				switch name {
				case "long":
					return "", long
				case "far":
					return long, ""
				}
				return "", "order"
			}})
			items := records("order.placed", 300)
			tt.bad(items[10].Record)
			errs := publishAll(within(t, 10*time.Second), t, p, items)
			goodOnes(t, errs, 10)
			if !errors.As(errs[10], tt.as) || !strings.Contains(errs[10].Error(), tt.want) || errors.Is(errs[10], waybill.ErrUnavailable) {
				t.Errorf("got %v, want a refusal that names the %s", errs[10], tt.want)
			}
		})
	}
}

func TestNackIsARefusal(t *testing.T) {
	b := newBroker(t)
	b.topic("events")
	b.queue("full", amqp.Table{"x-max-length": int32(2), "x-overflow": "reject-publish"})
	b.must(b.ch.QueueBind("full", "#", "events", false, nil))
	p := b.publisher(Config{Exchange: "events"})
	for i := range 5 {
		err := publishAll(within(t, 10*time.Second), t, p, records("order.placed", 1))[0]
		var rejected *outbox.RejectedError
		if i < 2 && err != nil || i >= 3 && (!errors.As(err, &rejected) || !strings.Contains(err.Error(), "nack") || errors.Is(err, waybill.ErrUnavailable)) {
			t.Errorf("publish %d to a queue with room for 2: %v", i, err)
		}
	}
}

func TestUnreachableBrokerIsUnavailableAndNotACut(t *testing.T) {
	p, err := NewPublisher(Config{URL: "amqp://u:s3cret@127.0.0.1:1/%2f", Exchange: "events"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, err := range publishAll(t.Context(), t, p, records("order.placed", 3)) {
		var cut *outbox.ConnectionLostError
		if !errors.Is(err, waybill.ErrUnavailable) || errors.As(err, &cut) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("got %v", err)
		}
	}
}

func TestClosedPublisherAnswersEverything(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	p := b.publisher(Config{Exchange: "events"})
	goodOnes(t, publishAll(within(t, 10*time.Second), t, p, records("order.placed", 3)), -1)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range publishAll(t.Context(), t, p, records("order.placed", 3)) {
		if !errors.Is(err, waybill.ErrUnavailable) {
			t.Errorf("after Close: %v, want ErrUnavailable", err)
		}
	}
	if err := p.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestSendWaitsForTheConfirmation(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	p := b.publisher(Config{Queue: "orders"}) // the default exchange
	if err := p.Send(within(t, 10*time.Second), record("order.placed", 7)); err != nil {
		t.Fatal(err)
	}
	if got := b.numbers("orders"); len(got) != 1 || got[0] != 7 {
		t.Errorf("the queue has %v", got)
	}
	late := record("order.placed", 8)
	late.Delay = time.Second
	if err := p.Send(within(t, 10*time.Second), late); err == nil {
		t.Error("a delayed message was sent at once")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Send(ended, record("order.placed", 9)); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("with an ended context: %v", err)
	}
	b.awaitReady("orders", 0)
}

func TestRoutesThatPanicLeaveTheSocketFree(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	p := b.publisher(Config{Exchange: "events", Routes: func(name string) (exchange, routingKey string) {
		if name == "bad" {
			panic("no route")
		}
		return "", ""
	}})
	goodOnes(t, publishAll(within(t, 20*time.Second), t, p, records("order.placed", 1)), -1)
	conn := p.alive()
	func() {
		defer func() { _ = recover() }()
		p.Publish(t.Context(), records("bad", 1), make(chan outbox.Result, 1))
	}()
	goodOnes(t, publishAll(within(t, 20*time.Second), t, p, records("order.placed", 1)), -1)
	if p.alive() != conn {
		t.Error("the connection was lost")
	}
}
