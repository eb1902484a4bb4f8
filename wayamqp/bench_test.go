package wayamqp

import (
	"bytes"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/outbox"
)

// BenchmarkPublish confirms one message of 200 bytes per operation, with at
// most 256 unconfirmed.
func BenchmarkPublish(b *testing.B) {
	broker := newBroker(b)
	broker.topic("events", "orders")
	p := broker.publisher(Config{Exchange: "events"})
	body := bytes.Repeat([]byte("x"), 200)
	const window = 256
	items, results := make([]outbox.Item, 0, window), make(chan outbox.Result, window)
	rec := record("order.placed", 0)
	rec.Body = body
	open, sent := 0, 0
	b.ResetTimer()
	for sent < b.N || open > 0 {
		items = items[:0]
		for ; open < window && sent < b.N; open, sent = open+1, sent+1 {
			items = append(items, outbox.Item{Seq: sent, Record: rec})
		}
		p.Publish(b.Context(), items, results)
		for more := true; more && open > 0; {
			r := <-results
			open--
			if r.Err != nil {
				b.Fatal(r.Err)
			}
			more = len(results) > 0
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// BenchmarkLibrary is the yardstick: the same messages without judging anything,
// in the simplest loop that amqp091-go allows.
func BenchmarkLibrary(b *testing.B) {
	broker := newBroker(b)
	broker.topic("events", "orders")
	broker.must(broker.ch.Confirm(false))
	rec := record("order.placed", 0)
	rec.Body = bytes.Repeat([]byte("x"), 200)
	msg, err := new(Config).encode(amqp.Table{}, rec, "events", rec.Name, 0)
	broker.must(err)
	open := make(chan *amqp.DeferredConfirmation, 256)
	b.ResetTimer()
	for n := 0; n < b.N || len(open) > 0; n++ {
		if len(open) == cap(open) || n >= b.N {
			if !(<-open).Wait() {
				b.Fatal("refused")
			}
		}
		if n < b.N {
			c, err := broker.ch.PublishWithDeferredConfirm("events", "order.placed", true, false, msg)
			broker.must(err)
			open <- c
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}
