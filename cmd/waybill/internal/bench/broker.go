package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// broker is the benchmark's exchange and queue.
type broker struct {
	name  string
	conn  *amqp.Connection
	ch    *amqp.Channel
	quiet time.Duration // how long nothing may arrive
}

// newBroker opens the broker of opt.
func newBroker(opt Options) (*broker, error) {
	b, err := openBroker(opt.Broker)
	if err != nil {
		return nil, fmt.Errorf("the broker %w: %w: %w", ErrOpen, waybill.ErrUnavailable, err)
	}
	return b, nil
}

func openBroker(url string) (_ *broker, err error) {
	b := &broker{name: fmt.Sprintf("waybill_bench_%d", time.Now().UnixMilli()), quiet: 10 * time.Second}
	if b.conn, err = amqp.Dial(url); err != nil {
		return nil, err
	}
	if b.ch, err = b.conn.Channel(); err == nil {
		err = errors.Join(
			b.ch.ExchangeDeclare(b.name, "topic", true, false, false, false, nil),
			second(b.ch.QueueDeclare(b.name, true, false, false, false, lazy)),
			b.ch.QueueBind(b.name, "#", b.name, false, nil))
	}
	if err != nil {
		return nil, errors.Join(err, b.conn.Close())
	}
	return b, nil
}

// lazy keeps the messages of the queue on disk, as all classic queues do from
// RabbitMQ 3.12 on. A round of relay has no consumer, and an older server
// repeatedly garbage-collects the messages in its memory: more than half of its
// work, and different in each round.
var lazy = amqp.Table{"x-queue-mode": "lazy"}

func second[T any](_ T, err error) error { return err }

// arrived takes everything out of the queue: it must be want messages, each
// once, and those of a key in the order of their numbers where ordered says so.
func (b *broker) arrived(ctx context.Context, want int, ordered bool) error {
	deliveries, err := b.ch.ConsumeWithContext(ctx, b.name, "check", true, true, false, false, nil)
	if err != nil {
		return err
	}
	seen := make(map[uint64]bool, want)
	latest := map[uint64]uint64{}
	quiet := time.NewTimer(b.quiet)
	defer quiet.Stop()
	for len(seen) < want {
		select {
		case d, ok := <-deliveries:
			if !ok || len(d.Body) < 16 {
				return errors.New("the consumer ended, or a message that is not the benchmark's arrived")
			}
			n, key := binary.BigEndian.Uint64(d.Body), binary.BigEndian.Uint64(d.Body[8:])
			if seen[n] {
				return fmt.Errorf("message %d arrived twice", n)
			}
			seen[n] = true
			if ordered && latest[key] > n {
				return fmt.Errorf("message %d of key %d arrived after %d", n, key, latest[key])
			}
			latest[key] = n
			quiet.Reset(b.quiet)
		case <-quiet.C:
			return fmt.Errorf("%d of %d messages arrived", len(seen), want)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := b.ch.Cancel("check", false); err != nil {
		return err
	}
	beyond, err := b.waiting()
	for range deliveries { // deliveries that the client had received before
		beyond++
	}
	if err == nil && beyond > 0 {
		err = fmt.Errorf("%d messages arrived beyond the %d that were sent", beyond, want)
	}
	return err
}

// waiting counts the messages in the queue.
func (b *broker) waiting() (int, error) {
	q, err := b.ch.QueueDeclarePassive(b.name, true, false, false, false, nil)
	return q.Messages, err
}

func (b *broker) close() error {
	_, err := b.ch.QueueDelete(b.name, false, false, false)
	return errors.Join(err, b.ch.ExchangeDelete(b.name, false, false), b.conn.Close())
}
