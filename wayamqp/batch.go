package wayamqp

import (
	"context"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/outbox"
)

// A publishBatch is the state of one Publish call. Each item gets one result; if
// the context ends first, publisherConn.expire settles the open ones.
type publishBatch struct {
	cfg      *Config
	results  chan<- outbox.Result
	open     atomic.Int64 // items without a result
	watching func() bool  // stops watching the context

	// Only touched by Publish:
	conn     *publisherConn
	channels map[string]*confirmChannel // by exchange; a channel that ends is not reopened in this batch
	headers  amqp.Table                 // of the last message; the library does not retain it
}

func newPublishBatch(cfg *Config, results chan<- outbox.Result, items int) *publishBatch {
	b := &publishBatch{cfg: cfg, results: results, watching: func() bool { return true }, channels: make(map[string]*confirmChannel, 1)}
	b.open.Store(int64(items))
	return b
}

// on binds the batch to c, which expires it when ctx ends. It is called before the
// first result.
func (b *publishBatch) on(ctx context.Context, c *publisherConn) {
	b.conn = c
	b.watching = context.AfterFunc(ctx, func() { c.expire(b, ctx.Err()) })
}

// done sends the result of an item. After the last one the context is no longer
// watched.
func (b *publishBatch) done(seq int, err error) {
	if b.open.Add(-1) == 0 {
		b.watching()
	}
	b.results <- outbox.Result{Seq: seq, Err: err}
}

// fail sends err as the result of items that were not published.
func (b *publishBatch) fail(items []outbox.Item, err error) {
	for _, item := range items {
		b.done(item.Seq, err)
	}
}

// write publishes an item or sends its result. An error means that neither this
// item nor a later one can be published.
func (b *publishBatch) write(ctx context.Context, item outbox.Item) error {
	exchange, key := b.cfg.route(item.Record.Name)
	if b.headers == nil {
		b.headers = make(amqp.Table, len(item.Record.Headers)+1)
	}
	clear(b.headers)
	msg, err := b.cfg.encode(b.headers, item.Record, exchange, key, b.conn.conn.client.Config.FrameSize)
	if err != nil {
		b.done(item.Seq, err)
		return nil
	}
	if b.conn.raised() != nil {
		if err := b.pause(func() error { return b.conn.clear(ctx) }); err != nil {
			return err
		}
	}
	ch, err := b.channel(ctx, exchange)
	if err != nil {
		return err
	}
	p := &publish{id: msg.MessageId, seq: item.Seq, batch: b, exchange: exchange, key: key}
	select {
	case ch.slots <- struct{}{}:
	default:
		if err := b.pause(func() error { return ch.slot(ctx, p) }); err != nil {
			b.done(p.seq, err)
			return nil
		}
	}
	ch.send(ctx, p, msg)
	return nil
}

// channel returns the batch's channel to exchange.
func (b *publishBatch) channel(ctx context.Context, exchange string) (*confirmChannel, error) {
	ch, ok := b.channels[exchange]
	if ok {
		return ch, nil
	}
	if ch = b.conn.find(exchange); ch == nil {
		if err := b.pause(func() (err error) { ch, err = b.conn.channel(ctx, exchange); return err }); err != nil {
			return nil, err
		}
	}
	b.channels[exchange] = ch
	return ch, nil
}

// pause flushes and releases the socket while wait blocks on the broker.
func (b *publishBatch) pause(wait func() error) error {
	err := b.conn.conn.out.release()
	defer b.conn.conn.out.hold()
	if err != nil {
		b.conn.broken(err)
	}
	return wait()
}
