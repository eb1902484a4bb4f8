package wayamqp

import (
	"strings"
	"testing"
	"time"
)

func TestWrongConfigIsRefusedWithoutThePassword(t *testing.T) {
	const good = "amqp://u:s3cret@127.0.0.1/"
	long := strings.Repeat("x", 256)
	for want, cfg := range map[string]Config{
		"URL is not":             {URL: "amqp://u:s3cret@127.0.0.1:s3cret/", Queue: "q"},
		"the URL is":             {URL: "http://u:s3cret@127.0.0.1/", Queue: "q"},
		"options":                {URL: good + "?heartbeat=1", Queue: "q"},
		"Heartbeat 1.5s":         {URL: good, Queue: "q", Heartbeat: 1500 * time.Millisecond},
		"Heartbeat 1m1s":         {URL: good, Queue: "q", Heartbeat: 61 * time.Second},
		"Heartbeat -1s":          {URL: good, Queue: "q", Heartbeat: -time.Second},
		"DialTimeout":            {URL: good, Queue: "q", DialTimeout: -1},
		"ExchangeType \"tpoic\"": {URL: good, Exchange: "e", Queue: "q", ExchangeType: "tpoic"},
		"QueueType":              {URL: good, Queue: "q", QueueType: "stream"},
		"ConfirmWithin 1ms":      {URL: good, Queue: "q", ConfirmWithin: time.Millisecond},
		"ConfirmWithin -1s":      {URL: good, Queue: "q", ConfirmWithin: -time.Second},
		"contradict":             {URL: good, Queue: "q", SingleActiveConsumer: true, CompetingConsumers: true},
		"Prefetch":               {URL: good, Queue: "q", Prefetch: 65536},
		"Queue has 256 bytes":    {URL: good, Queue: long},
		"binding":                {URL: good, Queue: "q", Bindings: []Binding{{"", "#"}}},
	} {
		_, err := NewPublisher(cfg)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("publisher, want %q: %v", want, err)
		}
		if _, err := NewConsumer(cfg); err == nil {
			t.Errorf("consumer, want %q", want)
		}
	}
	if _, err := NewPublisher(Config{URL: good}); err == nil {
		t.Error("a publisher to nowhere")
	}
	if _, err := NewConsumer(Config{URL: good, Exchange: "e"}); err == nil {
		t.Error("a consumer of nothing")
	}
}

func TestRouteOfAName(t *testing.T) {
	routes := func(name string) (string, string) {
		switch name {
		case "payment":
			return "payments", "pay"
		case "key":
			return "", "k"
		case "exchange":
			return "x", ""
		}
		return "", ""
	}
	for _, tt := range []struct {
		cfg           Config
		name          string
		exchange, key string
	}{
		{Config{Exchange: "events"}, "order.placed", "events", "order.placed"},
		{Config{Exchange: "events", RoutingKey: "all"}, "order.placed", "events", "all"},
		{Config{Queue: "orders"}, "order.placed", "", "orders"},
		{Config{Queue: "orders", RoutingKey: "ignored"}, "order.placed", "", "orders"},
		{Config{Exchange: "events", Queue: "orders"}, "order.placed", "events", "order.placed"},
		{Config{Exchange: "events", Routes: routes}, "payment", "payments", "pay"},
		{Config{Exchange: "events", Routes: routes}, "key", "events", "k"},
		{Config{Exchange: "events", Routes: routes}, "exchange", "x", "exchange"},
		{Config{Exchange: "events", Routes: routes}, "order.placed", "events", "order.placed"},
		{Config{Queue: "orders", Routes: routes}, "exchange", "x", "exchange"},
		{Config{Queue: "orders", Routes: routes}, "key", "", "k"},
	} {
		if exchange, key := tt.cfg.route(tt.name); exchange != tt.exchange || key != tt.key {
			t.Errorf("%s: %q %q, want %q %q", tt.name, exchange, key, tt.exchange, tt.key)
		}
	}
}
