package wayamqp

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// Each defect of a queue is found, and a look changes nothing.
func TestDefectsOfQueuesAreFound(t *testing.T) {
	b := newBroker(t)
	ctx := within(t, 30*time.Second)
	b.topic("events")
	b.queue("classic", amqp.Table{"x-queue-type": "classic"})
	b.queue("plain", nil)
	b.queue("limited", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 20})
	b.queue("fleeting", amqp.Table{"x-queue-type": "classic", "x-message-ttl": 60000})
	full := func(args amqp.Table) amqp.Table {
		args["x-queue-type"], args["x-max-length"] = "quorum", 5
		if _, given := args[argDeliveryLimit]; !given {
			maps.Copy(args, arguments(Config{QueueType: "quorum"}, b.conn.Properties))
		}
		return args
	}
	b.queue("short", full(amqp.Table{}))
	b.queue("short-single", full(amqp.Table{argSingleConsumer: true, "x-overflow": "drop-head"}))
	b.queue("refusing", full(amqp.Table{"x-overflow": "reject-publish", "x-dead-letter-exchange": ""}))
	b.queue("refusing-limited", full(amqp.Table{"x-overflow": "reject-publish", argDeliveryLimit: 20}))
	b.queue("small", amqp.Table{"x-queue-type": "classic", "x-max-length-bytes": 1 << 20})
	b.queue("quorum", arguments(Config{QueueType: "quorum"}, b.conn.Properties))
	b.queue("single", arguments(Config{QueueType: "quorum", SingleActiveConsumer: true}, b.conn.Properties))
	for _, tt := range []struct {
		cfg  Config
		want map[DefectKind]string
	}{
		{Config{Queue: "quorum"}, nil},
		{Config{Queue: "single", KeyHeader: true}, nil},
		{Config{Queue: "single"}, nil},
		{Config{Exchange: "events", Queue: "quorum", KeyHeader: true, CompetingConsumers: true}, nil},
		{Config{Queue: "classic", QueueType: "classic"}, nil},
		{Config{Exchange: "nowhere", Queue: "nothing"}, map[DefectKind]string{Missing: "does not exist"}},
		{Config{Queue: "quorum", KeyHeader: true}, map[DefectKind]string{Unordered: "order of keys"}},
		{Config{Queue: "limited"}, map[DefectKind]string{DropsMessages: "by x-delivery-limit"}},
		{Config{Queue: "classic"}, map[DefectKind]string{OtherType: "is classic, not quorum"}},
		{Config{Queue: "plain"}, map[DefectKind]string{OtherType: "is classic, not quorum"}},
		{Config{Queue: "plain", QueueType: "classic"}, nil},
		{Config{Queue: "quorum", QueueType: "classic"}, map[DefectKind]string{OtherType: "is quorum, not classic"}},
		{Config{Queue: "single", QueueType: "classic"}, map[DefectKind]string{OtherType: "is quorum, not classic"}}, // its single consumer is named first
		{Config{Queue: "classic", KeyHeader: true}, map[DefectKind]string{OtherType: "is classic, not quorum", Unordered: "order of keys"}},
		{Config{Queue: "fleeting", KeyHeader: true}, map[DefectKind]string{DropsMessages: "by x-message-ttl", OtherType: "is classic, not quorum", Unordered: "order of keys"}},
		{Config{Queue: "short"}, map[DefectKind]string{DropsMessages: "by x-max-length"}},
		{Config{Queue: "short-single", KeyHeader: true}, map[DefectKind]string{DropsMessages: "by x-max-length"}},
		{Config{Queue: "refusing"}, nil},
		{Config{Queue: "refusing", KeyHeader: true}, map[DefectKind]string{Unordered: "order of keys"}},
		{Config{Queue: "refusing-limited"}, map[DefectKind]string{DropsMessages: "by x-delivery-limit"}},
		{Config{Queue: "small"}, map[DefectKind]string{OtherType: "is classic, not quorum", DropsMessages: "by x-max-length-bytes"}},
	} {
		tt.cfg.URL = b.url
		found, err := Examine(ctx, tt.cfg)
		b.must(err)
		got := map[DefectKind]string{}
		for _, d := range found {
			got[d.Kind] = d.Problem
			if d.Remedy == "" || !strings.Contains(d.Problem, tt.want[d.Kind]) || tt.want[d.Kind] == "" {
				t.Errorf("%+v: %+v, want %v", tt.cfg, d, tt.want)
			}
		}
		if len(got) != len(tt.want) {
			t.Errorf("%+v: got %v, want %v", tt.cfg, got, tt.want)
		}
	}
	if err := Check(ctx, Config{URL: b.url, Queue: "nothing"}); err == nil {
		t.Error("a look has declared the queue")
	}
	if _, err := Examine(ctx, Config{URL: "amqp://u:s3cret@127.0.0.1:1/", Queue: "q"}); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("without a broker: %v", err)
	}
}
