package wayamqp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
)

// A Consumer receives from one queue over its own connection, which it opens on the
// first Receive and reopens after a loss. Its methods may be called concurrently.
// To keep the order of keys the queue needs a single active consumer: several
// Consumers of another queue share its messages whatever their keys, and even a
// single one that reconnects may get later messages before the broker has requeued
// the earlier ones. A Consumer that receives messages with keys from such a queue
// logs a warning, unless its Config has CompetingConsumers.
//
// A failed message is retried in place: it stays unacknowledged, the Consumer
// delivers it again after the delay, and later messages of its key wait behind it.
// So that such keys do not stop other keys when they fill the prefetch, the
// Consumer then takes messages beyond it, up to eight times as many in all. A queue
// with a single active consumer does not deliver them: there a few failing keys
// with many messages stop the queue, until they succeed or Prefetch is raised.
//
// The broker requeues all messages of a consumer that keeps one unacknowledged for
// longer than its consumer_timeout, 30 minutes by default, and delivers them again;
// the Consumer keeps their failure counts and retry times.
type Consumer struct {
	cfg Config

	connecting chan struct{} // held while connecting
	life       context.Context
	end        context.CancelFunc
	reading    sync.WaitGroup // added to while connecting is held

	checkedOrder bool // only touched by the session that reads

	mu      sync.Mutex // guards the fields below, and those of deliveries
	session *session   // nil before the first connection and after a lost one was reported
	buffer  *deliveryBuffer
	changed chan struct{} // closed when a message may be deliverable; nil while no Receive waits
	began   bool          // the queue was there once
	known   bool          // the queue was examined, and is still the same
	resting bool          // since Suspend, until the next Receive
}

var _ waybill.Receiver = (*Consumer)(nil)

// NewConsumer returns a receiver of cfg's queue.
func NewConsumer(cfg Config) (*Consumer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Queue == "" {
		return nil, errors.New("wayamqp: a consumer needs a Queue to receive from")
	}
	c := &Consumer{cfg: cfg, connecting: make(chan struct{}, 1), buffer: newDeliveryBuffer()}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

var errConsumerClosed = errors.New("wayamqp: the consumer is closed")

// Receive implements waybill.Receiver. When ctx ends before it is connected, its error
// wraps waybill.ErrUnavailable, too. After a lost connection it returns an error
// that wraps waybill.ErrUnavailable once, and connects again on the next call. A
// queue missing at the first connection is an error that does not: it was never
// declared.
func (c *Consumer) Receive(ctx context.Context, max int) ([]*waybill.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("wayamqp: receive at most %d messages", max)
	}
	c.mu.Lock()
	c.resting = false
	c.mu.Unlock()
	for {
		s, err := c.connected(ctx)
		if err != nil {
			return nil, fmt.Errorf("queue %s: %w", c.cfg.Queue, err)
		}
		c.mu.Lock()
		var ds []*waybill.Delivery
		var next time.Time
		if s == c.session {
			ds, next = c.buffer.take(max, time.Now())
		}
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		if len(ds) > 0 {
			return ds, nil
		}
		if err := wait(ctx, changed, s.closed, next); err != nil {
			return nil, err
		}
	}
}

// wait returns when a message may be deliverable.
func wait(ctx context.Context, changed, closed <-chan struct{}, next time.Time) error {
	var due <-chan time.Time
	if !next.IsZero() {
		timer := time.NewTimer(time.Until(next))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-changed:
	case <-closed:
	case <-due:
	}
	return nil
}

// wake lets waiting Receive calls look again. mu is held.
func (c *Consumer) wake() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// Connect connects, unless a connection is known to be alive, as Receive does. Between a
// Suspend and the next Receive it does nothing.
func (c *Consumer) Connect(ctx context.Context) error {
	_, err := c.connected(ctx)
	if errors.Is(err, errSuspended) {
		return nil
	}
	return err
}

// connected returns the present session, or begins one. A lost session is reported
// once.
func (c *Consumer) connected(ctx context.Context) (*session, error) {
	if s, err := c.present(); s != nil || err != nil {
		return s, err
	}
	select {
	case c.connecting <- struct{}{}:
		defer func() { <-c.connecting }()
	case <-ctx.Done():
		return nil, unavailable("connect", ctx.Err())
	}
	if c.life.Err() != nil {
		return nil, errConsumerClosed
	}
	if s, err := c.present(); s != nil || err != nil {
		return s, err
	}
	dialling, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	s, err := begin(dialling, c.cfg)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, unavailable("connect", ctx.Err())
	case err != nil && c.began && !errors.Is(err, waybill.ErrUnavailable):
		return nil, fmt.Errorf("%w: %w", waybill.ErrUnavailable, err) // the queue may come back
	case err != nil:
		return nil, err
	}
	if !c.known {
		s.forwarding.Go(func() { c.warnOfLoss(s) })
	}
	c.session, c.began, c.known = s, true, true
	c.reading.Go(func() { s.read(c) })
	c.cfg.Log.LogAttrs(ctx, slog.LevelDebug, "connected to receive", slog.String("queue", c.cfg.Queue), slog.String("broker", s.conn.raw.RemoteAddr().String()))
	return s, nil
}

func (c *Consumer) present() (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resting {
		return nil, errSuspended
	}
	if c.session == nil || c.session.err == nil {
		return c.session, nil
	}
	err := c.session.err
	c.session = nil
	if c.life.Err() != nil {
		return nil, errConsumerClosed
	}
	return nil, unavailable("receive", err)
}

// lost ends a session with err.
func (c *Consumer) lost(s *session, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.err = err
	c.buffer.clear(time.Now())
	close(s.closed)
	c.wake()
	if c.life.Err() == nil {
		c.cfg.Log.Debug("connection to receive ended", slog.String("queue", c.cfg.Queue), slog.Any("err", said(err)))
	}
}

// Ack implements waybill.Receiver. It returns when the acknowledgements are
// written; when ctx ends before that the connection is cut. A delivery of a lost
// connection is not acknowledged: the broker delivers it again.
func (c *Consumer) Ack(ctx context.Context, ds ...*waybill.Delivery) error {
	if err := ctx.Err(); err != nil {
		return err // nothing is settled
	}
	now := time.Now()
	c.mu.Lock()
	s := c.session
	var tags []uint64
	stale, err := c.each(ds, func(p *delivery, live bool) {
		if live {
			tags = append(tags, p.tag)
			s.held--
		}
		c.buffer.end(p, now)
	})
	c.wake()
	c.mu.Unlock()
	if len(tags) > 0 {
		if err := s.ack(ctx, tags); err != nil {
			return fmt.Errorf("queue %s: %w", c.cfg.Queue, unavailable("ack", err))
		}
	}
	return c.settled("ack", ds, stale, err)
}

// Retry implements waybill.Receiver. It sends nothing: see Consumer.
func (c *Consumer) Retry(ctx context.Context, d *waybill.Delivery, delay time.Duration) error {
	now := time.Now()
	due := now.Add(delay)
	ds := []*waybill.Delivery{d}
	c.mu.Lock()
	defer c.mu.Unlock()
	stale, err := c.each(ds, func(p *delivery, live bool) {
		if live {
			c.buffer.back(p, d.Failures+1, due, now)
		} else {
			c.buffer.lose(p, d.Failures+1, due, now)
		}
	})
	c.relieve()
	c.wake()
	return c.settled("retry", ds, stale, err)
}

// Release implements waybill.Receiver. It sends nothing: this Consumer delivers the
// message again, or the broker does after Close.
func (c *Consumer) Release(ctx context.Context, ds ...*waybill.Delivery) error {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	stale, err := c.each(ds, func(p *delivery, live bool) {
		if live {
			c.buffer.back(p, p.d.Failures, time.Time{}, now)
		} else {
			c.buffer.lose(p, p.d.Failures, time.Time{}, now)
		}
	})
	c.relieve()
	c.wake()
	return c.settled("release", ds, stale, err)
}

// LeaseTime implements waybill.Receiver: a delivery belongs to the connection.
func (c *Consumer) LeaseTime() time.Duration { return 0 }

// Renew implements waybill.Receiver.
func (c *Consumer) Renew(context.Context, ...*waybill.Delivery) ([]*waybill.Delivery, error) {
	return nil, nil
}

// each calls do for the deliveries of ds in flight; live ones are of the present
// connection. It counts the rest, and the settled ones. mu is held.
func (c *Consumer) each(ds []*waybill.Delivery, do func(p *delivery, live bool)) (stale int, err error) {
	for _, d := range ds {
		p, ok := d.Tag.(*delivery)
		if !ok || p.consumer != c {
			err = errors.New("the delivery is not of this consumer")
			continue
		}
		live := p.session == c.session && c.session.err == nil
		if !live || !p.inFlight {
			stale++
		}
		if p.inFlight {
			do(p, live)
		}
	}
	return stale, err
}

// settled returns the result of a call that settles.
func (c *Consumer) settled(verb string, ds []*waybill.Delivery, stale int, err error) error {
	if err == nil && stale > 0 {
		err = fmt.Errorf("%d of %d messages: the connection they came over has ended: %w", stale, len(ds), waybill.ErrLeaseLost)
	}
	if err != nil {
		return fmt.Errorf("queue %s: %s: %w", c.cfg.Queue, verb, err)
	}
	return nil
}

// Close gives everything that is not acknowledged back to the broker and ends
// the connection. It takes a little over a second at most.
func (c *Consumer) Close() error {
	c.end()
	c.connecting <- struct{}{} // nothing is connecting now, and nothing will
	defer func() { <-c.connecting }()
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()
	if s != nil {
		s.conn.close(errConsumerClosed)
	}
	c.reading.Wait()
	return nil
}
