package rabbitmq

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/waycli"
)

func TestConfigHasAllThatTheDSNSays(t *testing.T) {
	dsn := config.MustParseDSN("amqp://app@h?exchange=e&type=direct&routing_key=r&queue=q&queue_type=classic&single_active_consumer=true&bind=e:a.*,f:b:c&prefetch=9&heartbeat=7s&key_header=true")
	got, err := configOf(waycli.BrokerTransport{DSN: dsn, Client: "waybill events"})
	if err != nil {
		t.Fatal(err)
	}
	want := wayamqp.Config{
		URL: "amqp://app:@h", Name: "waybill events", Heartbeat: 7 * time.Second,
		Exchange: "e", ExchangeType: "direct", RoutingKey: "r", KeyHeader: true,
		Queue: "q", QueueType: "classic", SingleActiveConsumer: true, Prefetch: 9,
		Bindings: []wayamqp.Binding{{Exchange: "e", Key: "a.*"}, {Exchange: "f", Key: "b:c"}},
	}
	if diff := cmp.Diff(want, got, cmp.FilterPath(func(p cmp.Path) bool {
		return p.String() == "TLS" || p.String() == "Routes" || p.String() == "KeyOf" || p.String() == "Log"
	}, cmp.Ignore())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.TLS != nil || got.Routes != nil || got.KeyOf != nil {
		t.Error("TLS, Routes or KeyOf come from nowhere")
	}
}

func TestQueueThatKeysAreSentToIsSingleActive(t *testing.T) {
	const bound = "amqp://h?queue=billing&bind=others:%23,events:order.*"
	for _, tt := range []struct {
		queue, from string
		want        bool
	}{
		{bound, "amqp://h?exchange=events&key_header=true", true},
		{bound, "amqp://h?exchange=events", false},
		{bound, "amqp://h?exchange=payments&key_header=true", false},
		{"amqp://h?queue=billing", "amqp://h?queue=billing&key_header=true", true},
		{"amqp://h?queue=billing", "amqp://h?queue=other&key_header=true", false},
		{bound, "amqp://h?exchange=events&queue=audit&key_header=true", true},
	} {
		cfg, err := configOf(waycli.BrokerTransport{DSN: config.MustParseDSN(tt.queue)})
		if err != nil {
			t.Fatal(err)
		}
		if got := sendsKeys(waycli.BrokerTransport{DSN: config.MustParseDSN(tt.from)}, cfg); got != tt.want {
			t.Errorf("%s sends keys to %s: %t, want %t", tt.from, tt.queue, got, tt.want)
		}
	}
	for option, competing := range map[string]bool{"": false, "&single_active_consumer=true": false, "&single_active_consumer=false": true} {
		cfg, err := configOf(waycli.BrokerTransport{DSN: config.MustParseDSN(bound + option)})
		if err != nil || cfg.CompetingConsumers != competing {
			t.Errorf("%q: competing consumers %t, %v, want %t", option, cfg.CompetingConsumers, err, competing)
		}
	}
}

func TestAddressIsReadAsTheDSNWasWritten(t *testing.T) {
	type parts struct {
		Host, User, Password, Vhost string
		Port                        int
	}
	for dsn, want := range map[string]parts{
		"amqp://h":                {"h", "guest", "guest", "/", 5672},
		"amqp://h/":               {"h", "guest", "guest", "/", 5672},
		"amqp://h/%2f?exchange=e": {"h", "guest", "guest", "/", 5672},
		"amqps://a%40b:p%3A%2F%3F%40%25@h:1/v%2fw%20": {"h", "a@b", "p:/?@%", "v/w ", 1},
		"amqp://app@[::1]/v":                          {"::1", "app", "", "v", 5672},
	} {
		u, err := amqp.ParseURI(address(config.MustParseDSN(dsn)))
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		if diff := cmp.Diff(want, parts{u.Host, u.Username, u.Password, u.Vhost, u.Port}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", dsn, diff)
		}
	}
}
