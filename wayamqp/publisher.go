package wayamqp

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// A Publisher publishes to one broker over its own connection, which it opens on
// the first publish and reopens after a loss. Every message is persistent and
// mandatory; a nil result means that it was stored and routed. Its methods may be
// called concurrently; calls that share a connection share its end.
type Publisher struct {
	cfg Config

	connecting chan struct{} // held while connecting: one connection at a time
	life       context.Context
	end        context.CancelFunc
	running    sync.WaitGroup // only live connections add to it

	checked atomic.Bool // the exchange was there once

	mu       sync.Mutex     // guards the fields below
	conn     *publisherConn // the last one, or nil
	isolated *Publisher     // nil before Isolated
}

var (
	_ waybill.Sender   = (*Publisher)(nil)
	_ outbox.Publisher = (*Publisher)(nil)
)

// NewPublisher returns a publisher to cfg's exchange or queue.
func NewPublisher(cfg Config) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Exchange == "" && cfg.Queue == "" && cfg.Routes == nil {
		return nil, errors.New("wayamqp: a publisher needs an Exchange or a Queue to publish to")
	}
	return newPublisher(context.Background(), cfg), nil
}

func newPublisher(life context.Context, cfg Config) *Publisher {
	p := &Publisher{cfg: cfg, connecting: make(chan struct{}, 1)}
	p.life, p.end = context.WithCancel(life)
	return p
}

// Isolated implements outbox.Publisher. Its connection is opened on the
// first publish, and ends with p.
func (p *Publisher) Isolated() outbox.Publisher {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isolated == nil {
		cfg := p.cfg
		cfg.Name += " (isolated)"
		p.isolated = newPublisher(p.life, cfg)
		p.isolated.checked.Store(true) // by p
	}
	return p.isolated
}

// Traits implements outbox.Publisher. The broker may have asked for a shorter
// heartbeat; it is never longer.
func (p *Publisher) Traits() outbox.PublisherTraits {
	return outbox.PublisherTraits{
		Heartbeat: p.cfg.Heartbeat, Stream: p.stream, To: p.cfg.destination(),
		Address: func(rec *waybill.Record) (exchange, routingKey string) { return p.cfg.route(rec.Name) },
	}
}

// Send implements waybill.Sender. It waits for the broker's confirmation, as
// long as ctx allows. A delay is refused: an outbox can wait, a broker cannot.
func (p *Publisher) Send(ctx context.Context, rec *waybill.Record) error {
	if rec.Delay > 0 {
		return &waybill.InvalidError{What: "delay of " + rec.Name, Value: rec.Delay.String(), Problem: "a broker cannot wait: dispatch it through an outbox"}
	}
	results := make(chan outbox.Result, 1)
	p.Publish(ctx, []outbox.Item{{Record: rec}}, results)
	return (<-results).Err
}

// Publish implements outbox.Publisher. When ctx ends, the call sends no more
// records, and the connection is cut at once if the broker may not have read every
// sent one. A record for which the broker would close the connection is refused
// unsent.
//
// The error is an *outbox.UnroutableError if the broker could not route the record,
// an *outbox.RejectedError if a queue refused it, an *outbox.UnconfirmedError if
// the broker confirmed later records but not this one, and an *outbox.ConnectionLostError if
// the connection or the exchange's channel ended with the record in flight. Any
// other error that wraps waybill.ErrUnavailable means that it was not sent, or not
// confirmed because of an alarm.
func (p *Publisher) Publish(ctx context.Context, items []outbox.Item, results chan<- outbox.Result) {
	if len(items) == 0 {
		return
	}
	b := newPublishBatch(&p.cfg, results, len(items))
	c, err := p.connected(ctx)
	if err != nil {
		b.fail(items, err)
		return
	}
	b.on(ctx, c)
	c.conn.out.hold()
	defer func() { // also when Config.Routes panics
		if err := c.conn.out.release(); err != nil {
			c.broken(err)
		}
	}()
	for i, item := range items {
		if err := b.write(ctx, item); err != nil {
			b.fail(items[i:], err)
			break
		}
	}
}

// stream names the exchange: each has a channel.
func (p *Publisher) stream(rec *waybill.Record) string {
	exchange, _ := p.cfg.route(rec.Name)
	return exchange
}

// Connect implements outbox.Publisher. Until it has found the exchange once it fails
// without; one that is deleted later fails the messages for it alone.
func (p *Publisher) Connect(ctx context.Context) error {
	c, err := p.connected(ctx)
	if err != nil || p.checked.Load() || p.cfg.Exchange == "" {
		return err
	}
	err = c.conn.until(ctx, func() error {
		ch, err := c.conn.client.Channel()
		if err != nil {
			return unavailable("open a channel", err)
		}
		err = ch.ExchangeDeclarePassive(p.cfg.Exchange, p.cfg.ExchangeType, true, false, false, false, nil)
		if e := (*amqp.Error)(nil); errors.As(err, &e) && e.Code == amqp.AccessRefused {
			return nil // the user may not look, and the broker has closed the channel
		}
		if err != nil {
			return differs("exchange "+p.cfg.Exchange, err)
		}
		return ch.Close()
	})
	if err == nil {
		p.checked.Store(true)
	}
	return err
}

// connected returns a connection that was alive just now.
func (p *Publisher) connected(ctx context.Context) (*publisherConn, error) {
	if c := p.alive(); c != nil {
		return c, nil
	}
	select {
	case p.connecting <- struct{}{}:
		defer func() { <-p.connecting }()
	case <-ctx.Done():
		return nil, unavailable("connect", ctx.Err())
	}
	if p.life.Err() != nil {
		return nil, unavailable("publish", errPublisherClosed)
	}
	if c := p.alive(); c != nil {
		return c, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	w, err := dial(ctx, p.cfg)
	if err != nil {
		return nil, err
	}
	p.cfg.Log.LogAttrs(ctx, slog.LevelDebug, "connected to publish", slog.String("broker", w.raw.RemoteAddr().String()), slog.Duration("heartbeat", w.client.Config.Heartbeat))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn = newPublisherConn(w, &p.cfg, &p.running)
	return p.conn, nil
}

var errPublisherClosed = errors.New("the publisher is closed")

func (p *Publisher) alive() *publisherConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		return nil
	}
	select {
	case <-p.conn.closed:
		return nil
	default:
		return p.conn
	}
}

// Close ends the connection, and that of Isolated. Unconfirmed records get an
// error. It takes a little over a second for each at most.
func (p *Publisher) Close() error {
	p.end()
	p.mu.Lock()
	isolated := p.isolated
	p.mu.Unlock()
	if isolated != nil {
		_ = isolated.Close()
	}
	p.connecting <- struct{}{} // nothing is connecting now, and nothing will
	defer func() { <-p.connecting }()
	if c := p.alive(); c != nil {
		c.conn.close(errPublisherClosed)
		c.end(nil, errPublisherClosed)
		<-c.closed
	}
	p.running.Wait()
	return nil
}
