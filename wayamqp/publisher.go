package wayamqp

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// A Publisher publishes to one broker over a connection of its own, which it
// makes when there is something to publish and makes anew after it was lost.
// Every message is persistent and mandatory and has been stored and routed when
// its result is nil. Its methods may be called concurrently; calls that share a
// connection share its end.
type Publisher struct {
	cfg     Config
	numbers atomic.Uint64 // of publishes

	connecting chan struct{} // held while connecting: one connection at a time
	life       context.Context
	end        context.CancelFunc
	running    sync.WaitGroup // added to by links that are not over

	mu   sync.Mutex
	link *link // guarded by mu; nil or the last one
}

var (
	_ waybill.Sender             = (*Publisher)(nil)
	_ outbox.HeartbeatPublisher  = (*Publisher)(nil)
	_ outbox.ConnectingPublisher = (*Publisher)(nil)
	_ outbox.OrderedPublisher    = (*Publisher)(nil)
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
	p := &Publisher{cfg: cfg, connecting: make(chan struct{}, 1)}
	p.life, p.end = context.WithCancel(context.Background())
	return p, nil
}

// Heartbeat implements outbox.HeartbeatPublisher. The broker may have asked for
// a shorter one; it is never longer.
func (p *Publisher) Heartbeat() time.Duration { return p.cfg.Heartbeat }

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

// Publish implements outbox.Publisher. When ctx ends with records unconfirmed
// the connection is cut at once, and nothing more of this call is sent.
// A record that the broker would close the connection for is refused unsent.
//
// The error is an *outbox.UnroutableError where the broker had nowhere to put a
// record, and an *outbox.CutError where the connection or the exchange's
// channel ended while it was in flight. Any other error that wraps
// waybill.ErrUnavailable says that it was not sent.
func (p *Publisher) Publish(ctx context.Context, items []outbox.Item, results chan<- outbox.Result) {
	if len(items) == 0 {
		return
	}
	c := newCall(results, len(items))
	l, err := p.connected(ctx)
	if err != nil {
		c.fail(items, err)
		return
	}
	c.watch(ctx, l)
	w := writing{link: l, cfg: &p.cfg, call: c, outlets: make(map[string]*outlet, 1)}
	l.wire.out.hold()
	for i, item := range items {
		if err := w.write(ctx, item, p.numbers.Add(1)); err != nil {
			c.fail(items[i:], err)
			break
		}
	}
	if err := l.wire.out.release(); err != nil {
		l.broken(err)
	}
}

// A writing is what one call of Publish goes by.
type writing struct {
	link    *link
	cfg     *Config
	call    *call
	outlets map[string]*outlet // one that ends is not opened again in this call
	headers amqp.Table         // of the last message; the library does not keep it
}

// write sends one item or answers it. An error means that nothing more can be
// sent, this item included.
func (w *writing) write(ctx context.Context, item outbox.Item, no uint64) (err error) {
	exchange, key := w.cfg.route(item.Record.Name)
	if w.headers == nil {
		w.headers = make(amqp.Table, len(item.Record.Headers)+6)
	}
	clear(w.headers)
	msg, err := w.cfg.encode(w.headers, item.Record, no, exchange, key, w.link.wire.conn.Config.FrameSize)
	if err != nil {
		w.call.done(item.Seq, err)
		return nil
	}
	if w.link.raised() != nil {
		if err := w.pause(func() error { return w.link.clear(ctx) }); err != nil {
			return err
		}
	}
	o, ok := w.outlets[exchange]
	if !ok {
		if o = w.link.find(exchange); o == nil {
			if err := w.pause(func() (err error) { o, err = w.link.outlet(ctx, exchange); return err }); err != nil {
				return err
			}
		}
		w.outlets[exchange] = o
	}
	p := &publish{no: no, seq: item.Seq, call: w.call, exchange: exchange, key: key}
	select {
	case o.slots <- struct{}{}:
	default:
		if err := w.pause(func() error { return o.slot(ctx, p) }); err != nil {
			p.call.done(p.seq, err)
			return nil
		}
	}
	o.send(ctx, p, msg)
	return nil
}

// pause lets go of the socket while wait waits for the broker.
func (w *writing) pause(wait func() error) error {
	err := w.link.wire.out.release()
	defer w.link.wire.out.hold()
	if err != nil {
		w.link.broken(err)
	}
	return wait()
}

// Stream implements outbox.OrderedPublisher: each exchange has a channel.
func (p *Publisher) Stream(rec *waybill.Record) string {
	exchange, _ := p.cfg.route(rec.Name)
	return exchange
}

// Connect implements outbox.ConnectingPublisher.
func (p *Publisher) Connect(ctx context.Context) error {
	_, err := p.connected(ctx)
	return err
}

// connected returns a connection that was alive just now.
func (p *Publisher) connected(ctx context.Context) (*link, error) {
	if l := p.alive(); l != nil {
		return l, nil
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
	if l := p.alive(); l != nil {
		return l, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	w, err := dial(ctx, p.cfg)
	if err != nil {
		return nil, err
	}
	p.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "connected to publish", slog.String("broker", w.raw.RemoteAddr().String()), slog.Duration("heartbeat", w.conn.Config.Heartbeat))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link = newLink(w, p.cfg.Log, &p.running)
	return p.link, nil
}

var errPublisherClosed = errors.New("the publisher is closed")

func (p *Publisher) alive() *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link == nil {
		return nil
	}
	select {
	case <-p.link.over:
		return nil
	default:
		return p.link
	}
}

// Close ends the connection. What is unconfirmed is answered with an error.
// It takes a little over a second at most.
func (p *Publisher) Close() error {
	p.end()
	p.connecting <- struct{}{} // nothing is connecting now, and nothing will
	defer func() { <-p.connecting }()
	if l := p.alive(); l != nil {
		l.wire.close(errPublisherClosed)
		l.end(nil, errPublisherClosed)
		<-l.over
	}
	p.running.Wait()
	return nil
}
