package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/wayamqp"
)

// rabbit is RabbitMQ, with an exchange and a queue of the demo's own that close
// deletes. The consumer's connection goes through a proxy, which cuts it.
type rabbit struct {
	*wayamqp.Consumer
	proxy *faultproxy.Proxy
	conn  *amqp.Connection // for looks from outside
	name  string           // of exchange and queue
	dsn   string
	lost  time.Time // when the connection was cut last; only touched by lose
}

func openRabbit(ctx context.Context, dsn config.DSN) (_ broker, err error) {
	b := &rabbit{name: demoName(time.Now())}
	b.dsn = withOption(dsn.Reveal(), "exchange="+b.name+"&type=topic&key_header=true")
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	address := dsn.Reveal()
	if b.conn, err = amqp.Dial(address); err != nil {
		return nil, fmt.Errorf("%w: broker %s: %w", waybill.ErrUnavailable, dsn, err)
	}
	cfg := wayamqp.Config{URL: address, Exchange: b.name, ExchangeType: "topic", Queue: b.name, SingleActiveConsumer: true, Bindings: []wayamqp.Binding{{Exchange: b.name, Key: "#"}}, Prefetch: 200}
	if _, err = wayamqp.Declare(ctx, cfg); err != nil {
		return nil, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("broker %s is not a URL", dsn)
	}
	if u.Port() == "" {
		u.Host += ":5672"
	}
	if b.proxy, err = faultproxy.Start(u.Host); err != nil {
		return nil, err
	}
	u.Host = b.proxy.Addr()
	cfg.URL = u.String()
	b.Consumer, err = wayamqp.NewConsumer(cfg)
	return b, err
}

// demoName returns a name that no other demo has, even one that begins in the
// same millisecond.
func demoName(now time.Time) string {
	return fmt.Sprintf("waybill_demo_%d_%s", now.UnixMilli(), strings.ToLower(rand.Text()[:8]))
}

func (b *rabbit) transport() string { return b.dsn }

func (b *rabbit) waiting(context.Context) (int, error) {
	var q amqp.Queue
	err := b.outside(func(ch *amqp.Channel) (err error) {
		q, err = ch.QueueDeclarePassive(b.name, true, false, false, false, nil)
		return err
	})
	return q.Messages, err
}

// restWithin bounds the wait for the messages left in the queue.
const restWithin = 30 * time.Second

// rest consumes the messages left in the queue. It subscribes, because a queue with
// a single active consumer refuses basic.get.
func (b *rabbit) rest(ctx context.Context) (ids []waybill.MessageID, err error) {
	_ = b.Consumer.Close()
	left, err := b.waiting(ctx)
	if err != nil || left == 0 {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, restWithin)
	defer cancel()
	err = b.outside(func(ch *amqp.Channel) error {
		deliveries, err := ch.ConsumeWithContext(ctx, b.name, "", true, false, false, false, nil)
		if err != nil {
			return err
		}
		for len(ids) < left {
			d, ok := <-deliveries
			if !ok {
				return errors.Join(ctx.Err(), errors.New("the broker ended the subscription"))
			}
			id, err := waybill.ParseMessageID(d.MessageId)
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return nil
	})
	return ids, err
}

func (b *rabbit) outside(do func(ch *amqp.Channel) error) error {
	ch, err := b.conn.Channel()
	if err != nil {
		return err
	}
	return errors.Join(do(ch), ch.Close())
}

// cutEvery is how often the connection may be cut at most.
const cutEvery = 200 * time.Millisecond

// lose cuts the connection before the acknowledgements of ds are sent: the
// broker delivers all again that was not acknowledged.
func (b *rabbit) lose(ctx context.Context, ds []*waybill.Delivery) bool {
	if time.Since(b.lost) < cutEvery {
		return false
	}
	b.lost = time.Now()
	b.proxy.Reset()
	_ = b.Consumer.Ack(ctx, ds...) // in vain
	return true
}

// stall is not needed here: relays are at work all the time.
func (b *rabbit) stall(context.Context) (func(), error) { return func() {}, nil }

func (b *rabbit) close() error {
	var errs []error
	if b.Consumer != nil {
		errs = append(errs, b.Consumer.Close())
	}
	if b.proxy != nil {
		b.proxy.Close()
	}
	if b.conn != nil {
		errs = append(errs, b.outside(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(b.name, false, false, false)
			return errors.Join(err, ch.ExchangeDelete(b.name, false, false))
		}), b.conn.Close())
	}
	return errors.Join(errs...)
}
