package wayamqp

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

func TestDeclareMakesWhatTheConfigNames(t *testing.T) {
	b := newBroker(t)
	ctx := within(t, 20*time.Second)
	cfg := Config{URL: b.url, Exchange: "events", Queue: "orders", SingleActiveConsumer: true, Bindings: []Binding{{"events", "order.*"}}}
	if err := Check(ctx, cfg); err == nil || !strings.Contains(err.Error(), "schema up --transports") {
		t.Errorf("Check before: %v", err)
	}
	want := Declared{"exchange events (topic)", "queue orders (quorum)", "binding events:order.* -> orders"}
	for range 2 { // the second time it is there
		got, err := Declare(ctx, cfg)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Fatalf("%v, -want +got:\n%s", err, diff)
		}
	}
	if err := Check(ctx, cfg); err != nil {
		t.Errorf("Check after: %v", err)
	}
	p := b.publisher(cfg)
	b.must(p.Send(ctx, record("order.placed", 1)))
	if err := p.Send(ctx, record("invoice.sent", 1)); err == nil {
		t.Error("the binding takes everything")
	}
	want2 := receive(t, b.consumer(cfg), 1)
	if string(want2[0].Record.Body) != "1" {
		t.Errorf("received %s", want2[0].Record.Body)
	}
}

func TestDeclareNamesWhatDiffers(t *testing.T) {
	b := newBroker(t)
	ctx := within(t, 20*time.Second)
	_, err := Declare(ctx, Config{URL: b.url, Exchange: "events", Queue: "orders", QueueType: "classic"})
	b.must(err)
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{Exchange: "events", ExchangeType: "direct"}, "exchange events (direct): it is there with other properties"},
		{Config{Queue: "orders", QueueType: "quorum"}, "queue orders (quorum): it is there with other properties"},
		{Config{Queue: "orders", QueueType: "classic", Bindings: []Binding{{"others", "#"}}}, "binding others:# -> orders: declare the transport that publishes to others first"},
	} {
		tt.cfg.URL = b.url
		if _, err := Declare(ctx, tt.cfg); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
	if _, err := Declare(ctx, Config{URL: "amqp://u:s3cret@127.0.0.1:1/", Queue: "q"}); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("without a broker: %v", err)
	}
}

// M1: without a single active consumer, a consumer that reconnects may get later
// messages of a key first.
func TestQueueOfKeysHasASingleActiveConsumer(t *testing.T) {
	b := newBroker(t)
	ctx := within(t, 20*time.Second)
	for _, tt := range []struct {
		queue  string
		cfg    Config
		single bool
	}{
		{"keyed", Config{KeyHeader: true}, true},
		{"said", Config{SingleActiveConsumer: true}, true},
		{"competing", Config{KeyHeader: true, CompetingConsumers: true}, false},
		{"plain", Config{}, false},
	} {
		tt.cfg.URL, tt.cfg.Queue = b.url, tt.queue
		_, err := Declare(ctx, tt.cfg)
		b.must(err)
		err = Check(ctx, Config{URL: b.url, Queue: tt.queue, SingleActiveConsumer: true})
		if single := err == nil; single != tt.single || !single && !strings.Contains(err.Error(), "queue "+tt.queue+": it has no single active consumer") {
			t.Errorf("%s: %v, want it single-active: %t", tt.queue, err, tt.single)
		}
		b.must(Check(ctx, Config{URL: b.url, Queue: tt.queue}))
	}
	for want, cfg := range map[string]Config{
		"without a single active consumer, which key_header=true implies":  {Queue: "plain", KeyHeader: true},
		"with a single active consumer: write single_active_consumer=true": {Queue: "keyed"},
	} {
		cfg.URL = b.url
		if _, err := Declare(ctx, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a queue that was declared before: %v, want %s", err, want)
		}
	}
}

// M3: a queue declared on RabbitMQ 3 has no delivery limit, and gets none later.
// The test fakes the version of its broker.
func TestQueueOfAnOlderBrokerKeepsItsDeliveryLimit(t *testing.T) {
	b := newBroker(t)
	ctx := within(t, 20*time.Second)
	cfg, err := Config{URL: b.url, Queue: "orders.eu"}.withDefaults()
	b.must(err)
	w, err := dial(ctx, cfg)
	b.must(err)
	defer w.close(errors.New("the test ended"))
	w.client.Properties["version"] = "3.13.7"
	words, err := declareQueue(cfg, w)
	b.must(err)
	if diff := cmp.Diff([]string{"queue orders.eu (quorum)"}, words); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	w.client.Properties["version"] = "4.0.5"
	words, err = declareQueue(cfg, w)
	b.must(err)
	_, vhost, _ := strings.Cut(b.url, "/waybill_")
	want := "rabbitmqctl set_policy -p waybill_" + vhost + ` unlimited-orders.eu '^orders\.eu$' '{"delivery-limit":-1}' --apply-to queues`
	if len(words) != 2 || !strings.HasSuffix(words[1], want) {
		t.Errorf("got %q, want it to end with %s", words, want)
	}
	if lacksSingleConsumer(cfg, w) != true {
		t.Error("the other argument hides that the queue has no single active consumer")
	}
	cfg.QueueType = "classic"
	if _, err = declareQueue(cfg, w); err == nil || !strings.Contains(err.Error(), "it is there with other properties") {
		t.Errorf("what differs otherwise: %v", err)
	}
}

func TestQuorumQueueOfRabbitMQ4HasNoDeliveryLimit(t *testing.T) {
	for version, want := range map[string]any{"3.10.8": nil, "4.0.2": int32(-1), "": nil} {
		args := arguments(Config{QueueType: "quorum"}, amqp.Table{"version": version})
		if args["x-delivery-limit"] != want {
			t.Errorf("%s: %v", version, args)
		}
	}
}

// Without its exchange a publisher does not connect: a relay claims no message that the
// broker would refuse. One that is deleted later does not stop those for other exchanges.
func TestPublisherWantsItsExchangeAtTheStart(t *testing.T) {
	b := newBroker(t)
	p := b.publisher(Config{Exchange: "events"})
	ctx := within(t, 20*time.Second)
	err := p.Connect(ctx)
	if err == nil || errors.Is(err, waybill.ErrUnavailable) || !strings.Contains(err.Error(), "exchange events: it does not exist, `waybill schema up --transports` declares it: 404 NOT_FOUND") {
		t.Errorf("Connect without the exchange = %v", err)
	}
	b.topic("events", "orders")
	for _, what := range []string{"declared", "deleted again"} {
		if err := p.Connect(ctx); err != nil {
			t.Errorf("Connect with the exchange %s = %v", what, err)
		}
		b.must(b.ch.ExchangeDelete("events", false, false))
	}
	to := p.Traits()
	if exchange, key := to.Address(&waybill.Record{Name: "order.placed"}); exchange != "events" || key != "order.placed" {
		t.Errorf("a message goes to exchange %q by %q", exchange, key)
	}
	if got := fmt.Sprint(to.To); strings.Contains(got, "guest") || !strings.Contains(got, "exchange=events") || !strings.Contains(got, "broker=amqp://") {
		t.Errorf("the destination is %s, want broker and exchange without user and password", got)
	}
}
