package wayamqp

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
)

// A broker is a test's own virtual host, and a channel to look into it.
type broker struct {
	testing.TB
	url  string
	conn *amqp.Connection
	ch   *amqp.Channel
}

func newBroker(tb testing.TB) *broker {
	tb.Helper()
	return brokerAt(tb, testserver.RabbitMQ(tb))
}

func brokerAt(tb testing.TB, url string) *broker {
	tb.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		tb.Fatal(err)
	}
	return &broker{tb, url, conn, ch}
}

func (b *broker) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// topic declares a topic exchange, and queues that are bound to it with "#".
func (b *broker) topic(exchange string, queues ...string) {
	b.Helper()
	b.must(b.ch.ExchangeDeclare(exchange, "topic", true, false, false, false, nil))
	for _, queue := range queues {
		b.queue(queue, nil)
		b.must(b.ch.QueueBind(queue, "#", exchange, false, nil))
	}
}

func (b *broker) queue(name string, args amqp.Table) {
	b.Helper()
	_, err := b.ch.QueueDeclare(name, true, false, false, false, args)
	b.must(err)
}

// ready counts the messages of a queue that are not delivered.
func (b *broker) ready(queue string) int {
	b.Helper()
	q, err := b.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	b.must(err)
	return q.Messages
}

// awaitReady waits until a queue has want messages that are not delivered.
func (b *broker) awaitReady(queue string, want int) {
	b.Helper()
	got := -1
	for range 3000 {
		if got = b.ready(queue); got == want {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.Fatalf("queue %s has %d messages, want %d", queue, got, want)
}

// take removes the oldest message.
func (b *broker) take(queue string) amqp.Delivery {
	b.Helper()
	d, ok, err := b.ch.Get(queue, true)
	b.must(err)
	if !ok {
		b.Fatalf("queue %s is empty", queue)
	}
	return d
}

// numbers removes all messages and returns their bodies as numbers.
func (b *broker) numbers(queue string) (all []int) {
	b.Helper()
	for {
		d, ok, err := b.ch.Get(queue, true)
		b.must(err)
		if !ok {
			return all
		}
		n, err := strconv.Atoi(string(d.Body))
		b.must(err)
		all = append(all, n)
	}
}

func (b *broker) publisher(cfg Config) *Publisher {
	b.Helper()
	cfg.URL = cmp.Or(cfg.URL, b.url)
	p, err := NewPublisher(cfg)
	b.must(err)
	b.Cleanup(func() { _ = p.Close() })
	return p
}

// record returns a message of that name whose body is n.
func record(name string, n int) *waybill.Record {
	id, err := waybill.NewMessageID()
	if err != nil {
		panic(err)
	}
	return &waybill.Record{ID: id, Name: name, ContentType: "application/json", Body: strconv.AppendInt(nil, int64(n), 10), DispatchedAt: time.Now().UTC()}
}

// records returns n messages of that name, with bodies from 0 on.
func records(name string, n int) []outbox.Item {
	items := make([]outbox.Item, n)
	for i := range items {
		items[i] = outbox.Item{Seq: i, Record: record(name, i)}
	}
	return items
}

// publishAll returns the results by Seq, which are 0 to len(items)-1. More or fewer
// results than items fail the test.
func publishAll(ctx context.Context, tb testing.TB, p outbox.Publisher, items []outbox.Item) []error {
	tb.Helper()
	results := make(chan outbox.Result, len(items)+8)
	p.Publish(ctx, items, results)
	errs, err := collect(results, len(items))
	if err != nil {
		tb.Fatal(err)
	}
	return errs
}

func collect(results <-chan outbox.Result, n int) ([]error, error) {
	errs, seen := make([]error, n), make([]bool, n)
	late := time.After(30 * time.Second)
	for i := range n {
		select {
		case r := <-results:
			if seen[r.Seq] {
				return nil, fmt.Errorf("a second result for item %d: %v", r.Seq, r.Err)
			}
			errs[r.Seq], seen[r.Seq] = r.Err, true
		case <-late:
			return nil, fmt.Errorf("%d of %d results came", i, n)
		}
	}
	select {
	case r := <-results:
		return nil, fmt.Errorf("one result too many: item %d: %v", r.Seq, r.Err)
	default:
		return errs, nil
	}
}

// within is a context that ends with the test, or after d.
func within(tb testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(tb.Context(), d)
	tb.Cleanup(cancel)
	return ctx
}
