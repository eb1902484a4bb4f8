package wayamqp

import (
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestConsumerSaysThatItsQueueDropsMessages(t *testing.T) {
	for _, tt := range []struct {
		name string
		args amqp.Table
		want string // empty: no warning
	}{
		{"as declared", amqp.Table{"x-queue-type": "quorum"}, ""},
		{"as declared for keys", amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true}, ""},
		{"of another type", amqp.Table{"x-queue-type": "classic"}, ""},
		{"bounded, and refuses", amqp.Table{"x-queue-type": "quorum", "x-max-length": int32(5), "x-overflow": "reject-publish"}, ""},
		{"bounded, and drops", amqp.Table{"x-queue-type": "quorum", "x-max-length": int32(5)}, "argument=x-max-length"},
		{"a limit", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(3)}, "rabbitmqctl set_policy"},
		{"a limit behind another difference", amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true, "x-delivery-limit": int32(3)}, "rabbitmqctl set_policy"},
		{"a time to live", amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int32(60000)}, "argument=x-message-ttl"},
		{"an expiry", amqp.Table{"x-queue-type": "quorum", "x-expires": int32(60000)}, "argument=x-expires"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBroker(t)
			if _, given := tt.args[argDeliveryLimit]; !given && tt.args["x-queue-type"] == "quorum" { // RabbitMQ 4 has one by default
				maps.Copy(tt.args, arguments(Config{QueueType: "quorum"}, b.conn.Properties))
			}
			b.queue("orders", tt.args)
			b.fill("")
			var log warnings
			c := b.consumer(Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
			stock(t, c, 1)
			if tt.want != "" {
				eventually(t, "it has warned", func() bool { return log.count("the queue may drop messages") == 1 && log.count(tt.want) == 1 })
			}
			b.must(c.Close())
			if tt.want == "" && log.count("may drop") != 0 {
				t.Errorf("it warns: %s", log.text.String())
			}
		})
	}
}

// A queue that is deleted under its consumer is another one when it is back.
func TestQueueThatComesBackIsExaminedAgain(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", arguments(Config{QueueType: "quorum", SingleActiveConsumer: true}, b.conn.Properties))
	b.fill("k")
	var log warnings
	c := b.consumer(Config{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	stock(t, c, 1)
	_, err := b.ch.QueueDelete("orders", false, false, false)
	b.must(err)
	b.queue("orders", amqp.Table{"x-queue-type": "classic", "x-message-ttl": int32(60000)})
	b.fill("k")
	eventually(t, "it has warned of both", func() bool {
		_, _ = c.Receive(within(t, 100*time.Millisecond), 1)
		return log.count("the queue may drop messages") == 1 && log.count("the queue does not keep the order of keys") == 1
	})
	b.must(c.Close())
}

func TestEndByTheConsumerTimeoutSaysWhatToDo(t *testing.T) {
	for reason, want := range map[string]bool{
		"PRECONDITION_FAILED - consumer ack timed out on channel 1":                                                   true,
		"PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms. This": true,
		"PRECONDITION_FAILED - unknown delivery tag 7":                                                                false,
	} {
		err := timedOut(&amqp.Error{Code: amqp.PreconditionFailed, Reason: reason, Server: true})
		if got := strings.Contains(err.Error(), "consumer_timeout: raise it above"); got != want || !strings.Contains(err.Error(), reason) {
			t.Errorf("got %v, want a hint: %t", err, want)
		}
	}
}

func TestSubscriptionThatTheBrokerEndsSaysWhy(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	b.fill("")
	c := b.consumer(Config{})
	receive(t, c, 1)
	_, err := b.ch.QueueDelete("orders", false, false, false)
	b.must(err)
	_, err = c.Receive(within(t, 10*time.Second), 1)
	if err == nil || !strings.Contains(err.Error(), "the broker ended the subscription: the queue was deleted") {
		t.Errorf("Receive = %v, want the broker's reason", err)
	}
}

// A session holds at most eight times the prefetch.
func TestReliefHasABound(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	b.fill("")
	c := b.consumer(Config{})
	stock(t, c, 1)
	for range maxRelief + 2 { // each waits until the one before it was taken
		c.session.more <- struct{}{}
	}
	eventually(t, "all are subscribed", func() bool {
		q, err := b.ch.QueueDeclarePassive("orders", true, false, false, false, nil)
		b.must(err)
		if q.Consumers > maxRelief {
			t.Fatalf("%d subscriptions, want %d", q.Consumers, maxRelief)
		}
		return q.Consumers == maxRelief
	})
}

// The broker ends each of several subscriptions.
func TestLossOfSeveralSubscriptionsIsReportedAtOnce(t *testing.T) {
	b := newBroker(t)
	b.queue("orders", nil)
	b.fill("")
	c := b.consumer(Config{Heartbeat: time.Minute})
	stock(t, c, 1)
	for range 6 {
		c.session.more <- struct{}{}
	}
	eventually(t, "several are subscribed", func() bool {
		q, err := b.ch.QueueDeclarePassive("orders", true, false, false, false, nil)
		b.must(err)
		return q.Consumers >= 7
	})
	receive(t, c, 1)
	_, err := b.ch.QueueDelete("orders", false, false, false)
	b.must(err)
	start := time.Now()
	_, err = c.Receive(within(t, 30*time.Second), 1)
	if took := time.Since(start); err == nil || !strings.Contains(err.Error(), "the broker ended the subscription") || took > 3*time.Second {
		t.Errorf("Receive = %v after %v, want the broker's reason at once", err, took)
	}
}
