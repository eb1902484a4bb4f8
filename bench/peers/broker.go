package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A broker is a topic exchange and a durable classic queue behind it, both of
// the program's own and of the same name.
type broker struct {
	url, name string
	conn      *amqp.Connection
	ch        *amqp.Channel
}

func openBroker(url string) (*broker, error) {
	if _, err := amqp.ParseURI(url); err != nil {
		return nil, errors.New("the URL is not amqp://user:password@host:port/vhost")
	}
	b := &broker{url: url, name: fmt.Sprintf("waybill_peers_%d", time.Now().UnixMilli())}
	var err error
	if b.conn, err = amqp.Dial(url); err != nil {
		return nil, err
	}
	if b.ch, err = b.conn.Channel(); err != nil {
		return nil, errors.Join(err, b.conn.Close())
	}
	if err := b.declare(); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *broker) declare() error {
	if err := b.ch.ExchangeDeclare(b.name, "topic", true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := b.ch.QueueDeclare(b.name, true, false, false, false, nil); err != nil {
		return err
	}
	return b.ch.QueueBind(b.name, "#", b.name, false, nil)
}

// confirming opens a connection with one channel in confirm mode, for
// publishing by amqp091-go itself.
func (b *broker) confirming() (*amqp.Connection, *amqp.Channel, error) {
	conn, err := amqp.Dial(b.url)
	if err != nil {
		return nil, nil, err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, ch, nil
}

// arrival is the result of comparing the queue with the sent messages.
type arrival struct {
	missing    int
	duplicates int
	disordered int // arrived behind a later one of their key
}

// arrived takes everything out of the queue and compares it with the sent
// messages. All publishers have stopped.
func (b *broker) arrived(ctx context.Context, want, keys int) (arrival, error) {
	queue, err := b.ch.QueueDeclarePassive(b.name, true, false, false, false, nil)
	if err != nil || queue.Messages == 0 {
		return arrival{missing: want}, err
	}
	deliveries, err := b.ch.ConsumeWithContext(ctx, b.name, "check", true, true, false, false, nil)
	if err != nil {
		return arrival{}, err
	}
	a := arrival{missing: want}
	seen := make([]bool, want)
	latest := make([]int, keys)
	for range queue.Messages {
		select {
		case d, ok := <-deliveries:
			var m placed
			if !ok {
				return a, errors.New("the queue was closed while it was being read")
			}
			if err := json.Unmarshal(d.Body, &m); err != nil || m.N < 0 || m.N >= want || len(d.Body) != bodySize {
				return a, fmt.Errorf("a message arrived that nobody sent: %.300q", d.Body)
			}
			if seen[m.N] {
				a.duplicates++
				continue
			}
			seen[m.N] = true
			a.missing--
			key := m.N % keys
			if m.N < latest[key] {
				a.disordered++
			}
			latest[key] = max(latest[key], m.N)
		case <-time.After(30 * time.Second):
			return a, fmt.Errorf("the queue gave nothing for 30 s, with %d messages missing", a.missing)
		case <-ctx.Done():
			return a, ctx.Err()
		}
	}
	return a, b.ch.Cancel("check", false)
}

// close deletes queue and exchange on a new connection, because the other one may
// have been closed by an error.
func (b *broker) close() error {
	_ = b.conn.Close()
	conn, err := amqp.Dial(b.url)
	if err != nil {
		return fmt.Errorf("%w: delete queue and exchange %s by hand", err, b.name)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDelete(b.name, false, false, false)
	}
	if err == nil {
		err = ch.ExchangeDelete(b.name, false, false)
	}
	if err != nil {
		return fmt.Errorf("%w: delete queue and exchange %s by hand", err, b.name)
	}
	return nil
}
