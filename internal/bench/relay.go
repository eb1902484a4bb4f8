package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

// Relay measures a relay in strict order against one that keeps no order. Rows
// are loaded before each round, and what arrived is counted and its order
// checked after it.
func Relay(ctx context.Context, opt Options) (_ []Result, err error) {
	p, err := newPlace(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	broker, err := openBroker(opt.Broker)
	if err != nil {
		return nil, fmt.Errorf("the broker %w: %w: %w", ErrOpen, waybill.ErrUnavailable, err)
	}
	defer func() { err = errors.Join(err, broker.close()) }()
	pub, err := wayamqp.NewPublisher(wayamqp.Config{URL: opt.Broker, Exchange: broker.name})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pub.Close()) }()
	relay, err := outbox.NewRelay(p.store(), pub, outbox.RelayConfig{Drain: true, Workers: opt.Workers})
	if err != nil {
		return nil, err
	}
	res := Result{Case: "relay", Database: p.database(), Keys: opt.Keys, Workers: opt.Workers, Ordering: "strict", Target: 0.70}
	res, err = race(ctx, opt, res,
		func(ctx context.Context) (int, time.Duration, error) {
			err := p.load(ctx, opt, false)
			if err != nil {
				return 0, 0, err
			}
			start := time.Now()
			err = relay.Run(ctx)
			took := time.Since(start)
			if err == nil {
				err = broker.arrived(ctx, opt.Rows, opt.Keys)
			}
			return opt.Rows, took, err
		},
		func(ctx context.Context) (int, time.Duration, error) {
			err := p.load(ctx, opt, true)
			if err != nil {
				return 0, 0, err
			}
			start := time.Now()
			err = idealRelays(ctx, p, opt, broker.name)
			took := time.Since(start)
			if err == nil {
				err = broker.arrived(ctx, opt.Rows, 0)
			}
			return opt.Rows, took, err
		})
	return []Result{res}, err
}

func idealRelays(ctx context.Context, p place, opt Options, exchange string) error {
	var wg sync.WaitGroup
	errs := make([]error, opt.Workers)
	for i := range errs {
		wg.Go(func() { errs[i] = idealRelay(ctx, p, opt.Broker, exchange) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// idealRelay relays by the yardstick until nothing is left.
func idealRelay(ctx context.Context, p place, broker, exchange string) error {
	conn, err := amqp.Dial(broker)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	for {
		if n, err := p.ideal(ctx, ch, exchange); err != nil || n == 0 {
			return err
		}
	}
}

// broker is an exchange and a queue of the benchmark's own.
type broker struct {
	name string
	conn *amqp.Connection
	ch   *amqp.Channel
}

func openBroker(url string) (*broker, error) {
	b := &broker{name: fmt.Sprintf("waybill_bench_%d", time.Now().UnixMilli())}
	var err error
	if b.conn, err = amqp.Dial(url); err != nil {
		return nil, err
	}
	if b.ch, err = b.conn.Channel(); err == nil {
		err = errors.Join(
			b.ch.ExchangeDeclare(b.name, "topic", true, false, false, false, nil),
			second(b.ch.QueueDeclare(b.name, true, false, false, false, nil)),
			b.ch.QueueBind(b.name, "#", b.name, false, nil))
	}
	if err != nil {
		return nil, errors.Join(err, b.conn.Close())
	}
	return b, nil
}

func second[T any](_ T, err error) error { return err }

// arrived takes everything out of the queue: it must be want messages, each
// once, and where keys is not 0, those of a key in the order of their numbers.
func (b *broker) arrived(ctx context.Context, want, keys int) error {
	deliveries, err := b.ch.ConsumeWithContext(ctx, b.name, "check", true, true, false, false, nil)
	if err != nil {
		return err
	}
	seen := make(map[uint64]bool, want)
	latest := map[uint64]uint64{}
	quiet := time.NewTimer(10 * time.Second)
	defer quiet.Stop()
	for len(seen) < want {
		select {
		case d := <-deliveries:
			if len(d.Body) < 8 {
				return errors.New("a message that is not the benchmark's arrived")
			}
			n := binary.BigEndian.Uint64(d.Body)
			if seen[n] {
				return fmt.Errorf("message %d arrived twice", n)
			}
			seen[n] = true
			if keys > 0 {
				if key := n % uint64(keys); latest[key] > n {
					return fmt.Errorf("message %d of key %d arrived after %d", n, key, latest[key])
				} else {
					latest[key] = n
				}
			}
			quiet.Reset(10 * time.Second)
		case <-quiet.C:
			return fmt.Errorf("%d of %d messages arrived", len(seen), want)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := b.ch.Cancel("check", false); err != nil {
		return err
	}
	q, err := b.ch.QueueDeclarePassive(b.name, true, false, false, false, nil)
	if err == nil && q.Messages > 0 {
		err = fmt.Errorf("%d messages arrived beyond the %d that were sent", q.Messages, want)
	}
	return err
}

func (b *broker) close() error {
	_, err := b.ch.QueueDelete(b.name, false, false, false)
	return errors.Join(err, b.ch.ExchangeDelete(b.name, false, false), b.conn.Close())
}
