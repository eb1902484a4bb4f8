package wayamqp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// A session is one connection of a Consumer. Delivery tags mean something only
// within it.
type session struct {
	conn   *conn
	ch     *amqp.Channel
	closed chan struct{} // closed when it has ended
	more   chan struct{} // asks read for a subscription beyond the prefetch

	subscriptions int                       // so far; only touched by begin and read
	arrived       chan *amqp.Delivery       // from all subscriptions; nil says that one has ended
	early         map[uint64]*amqp.Delivery // that overtook another one on the way here, by tag; only touched by read
	next          uint64                    // the tag that comes next; only touched by read
	warnedOfLimit bool                      // only touched by read
	canceled      <-chan string
	closes        <-chan *amqp.Error

	forwarding sync.WaitGroup // goroutines of subscriptions and of checks of the queue

	settling sync.Mutex // held while acknowledgements are written, in the order of acks
	acks     acks

	err      error // how it ended; guarded by the Consumer's mu, like the fields below
	held     int   // delivered and not acknowledged
	relieved int   // how many waited for retries when more was asked for
}

// begin connects and subscribes to the queue.
func begin(ctx context.Context, cfg Config) (*session, error) {
	w, err := dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s := &session{conn: w, closed: make(chan struct{}), more: make(chan struct{}, 1), arrived: make(chan *amqp.Delivery), early: map[uint64]*amqp.Delivery{}, next: 1}
	err = w.until(ctx, func() (err error) {
		if s.ch, err = w.client.Channel(); err != nil {
			return err
		}
		s.canceled = s.ch.NotifyCancel(make(chan string, maxRelief)) // room for each: the library reads nothing else while it waits
		s.closes = s.ch.NotifyClose(make(chan *amqp.Error, 1))
		return s.subscribe(cfg)
	})
	if err != nil {
		close(s.closed)
		w.close(err)
		s.forwarding.Wait()
		return nil, refused(err)
	}
	return s, nil
}

// subscribe begins a further subscription, with its own prefetch.
func (s *session) subscribe(cfg Config) error {
	s.subscriptions++
	if err := s.ch.Qos(cfg.Prefetch, 0, false); err != nil {
		return err
	}
	deliveries, err := s.ch.Consume(cfg.Queue, fmt.Sprintf("waybill-%d", s.subscriptions), false, false, false, false, nil)
	if err != nil {
		return err
	}
	s.forwarding.Go(func() {
		for d := range deliveries {
			select {
			case s.arrived <- &d:
			case <-s.closed:
			}
		}
		select {
		case s.arrived <- nil:
		case <-s.closed:
		}
	})
	return nil
}

// refused returns the error of a queue that cannot be consumed, with a hint. Only a
// refusal of the queue itself is not ErrUnavailable.
func refused(err error) error {
	var e *amqp.Error
	switch {
	case !errors.As(err, &e) || !isSoft(e):
		return unavailable("receive", err)
	case e.Code == amqp.NotFound:
		return fmt.Errorf("%w: it does not exist, `waybill schema up --transports` declares it: %w", waybill.ErrNotFound, said(e))
	}
	return said(e)
}

// read buffers the broker's deliveries until the connection ends.
func (s *session) read(c *Consumer) {
	for {
		select {
		case d := <-s.arrived:
			if d == nil {
				s.finish(c, nil)
				return
			}
			// The broker numbers in the order of the queue. Each subscription has
			// its own way through the library, so they may overtake each other.
			s.early[d.DeliveryTag] = d
			for ; s.early[s.next] != nil; s.next++ {
				c.arrive(s, s.early[s.next])
				delete(s.early, s.next)
			}
		case <-s.more:
			// The first subscription stays: with a single active consumer another
			// worker would get the queue while this one has messages of it, and keys
			// would lose their order. There a further subscription gets nothing.
			if s.subscriptions == maxRelief {
				continue
			}
			if err := s.subscribe(c.cfg); err != nil {
				s.finish(c, err)
				return
			}
		}
	}
}

// finish ends the session, with err or the broker's reason.
func (s *session) finish(c *Consumer, err error) {
	if cause := s.conn.cutFor(); cause != nil {
		err = cause
	}
	select {
	case _, canceled := <-s.canceled:
		if canceled {
			c.forgetQueue()
			err = errors.New("the broker ended the subscription: the queue was deleted or is not available, or a message was kept for longer than the broker's consumer_timeout: " + raiseTimeout)
		}
	default:
	}
	s.conn.close(errors.New("the subscription ended"))
	if e := <-s.closes; e != nil && err == nil {
		err = timedOut(e)
	}
	if err == nil {
		err = amqp.ErrClosed
	}
	c.lost(s, err)
	s.forwarding.Wait()
}

// forgetQueue has the next session examine the queue: one that was deleted may come back with
// other arguments. Only read calls it.
func (c *Consumer) forgetQueue() {
	c.checkedOrder = false
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = false
}

// arrive puts a delivery into the buffer.
func (c *Consumer) arrive(s *session, d *amqp.Delivery) {
	now := time.Now()
	rec, failures := c.cfg.decode(d, now)
	p := &delivery{consumer: c, session: s, tag: d.DeliveryTag}
	p.d = &waybill.Delivery{Record: rec, Failures: failures, Redelivered: d.Redelivered, Lost: s.closed, Tag: p}
	c.warnOfLimit(s, d, rec)
	c.warnOfOrder(s, rec)
	c.mu.Lock()
	defer c.mu.Unlock()
	s.held++
	c.buffer.add(p, now)
	c.relieve()
	c.wake()
}

// manyDeliveries is the number of deliveries of a message above which a warning is
// due: RabbitMQ 4 drops it after twenty.
const manyDeliveries = 10

// warnOfLimit warns once per connection of messages near the delivery limit of a
// quorum queue. Only read calls it.
func (c *Consumer) warnOfLimit(s *session, d *amqp.Delivery, rec *waybill.Record) {
	count, _ := d.Headers["x-delivery-count"].(int64)
	if count <= manyDeliveries || s.warnedOfLimit {
		return
	}
	s.warnedOfLimit = true
	c.cfg.Log.Warn("a message was delivered and given back many times", slog.String("queue", c.cfg.Queue), slog.String("id", rec.ID.String()),
		slog.Int64("deliveries", count), slog.String("hint", noDeliveryLimit(c.cfg)))
}

// warnOfLoss warns of a queue whose arguments drop messages.
func (c *Consumer) warnOfLoss(s *session) {
	if arg, hint := dropsBy(c.cfg, s.conn); arg != "" {
		c.cfg.Log.Warn("the queue may drop messages", slog.String("queue", c.cfg.Queue), slog.String("argument", arg), slog.String("hint", hint))
	}
}

// warnOfOrder checks at the first message with a key whether the queue keeps the
// order of keys, and warns if not. Only read calls it.
func (c *Consumer) warnOfOrder(s *session, rec *waybill.Record) {
	if rec.Key == "" || c.cfg.CompetingConsumers || c.checkedOrder {
		return
	}
	c.checkedOrder = true
	s.forwarding.Go(func() {
		if lacksSingleConsumer(c.cfg, s.conn) {
			c.cfg.Log.Warn("the queue does not keep the order of keys", slog.String("queue", c.cfg.Queue), slog.String("hint", noSingleConsumer))
		}
	})
}

// ack writes the acknowledgements of tags.
func (s *session) ack(ctx context.Context, tags []uint64) error {
	return s.conn.until(ctx, func() error {
		s.settling.Lock()
		defer s.settling.Unlock()
		upto, single := s.acks.add(tags)
		if upto > 0 {
			if err := s.ch.Ack(upto, true); err != nil {
				return err
			}
		}
		for _, tag := range single {
			if err := s.ch.Ack(tag, false); err != nil {
				return err
			}
		}
		return nil
	})
}

// maxRelief is how many times the prefetch a session may hold, in as many
// subscriptions.
const maxRelief = 8

// relieve takes messages beyond the prefetch when more than half of it has gone
// to keys that wait for retries, so that other keys can go on. mu is held.
func (c *Consumer) relieve() {
	s, n := c.session, c.cfg.Prefetch
	if s == nil || len(c.buffer.ready) > 0 {
		return
	}
	waiting := c.buffer.waiting()
	s.relieved = min(s.relieved, waiting)
	if waiting-s.relieved <= n/2 {
		return
	}
	select {
	case s.more <- struct{}{}:
		s.relieved = waiting
	default: // asked for, and not there yet
	}
}
