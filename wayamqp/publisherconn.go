package wayamqp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// A publisherConn is one connection of a Publisher, with a channel for each
// exchange, which does not outlive it.
type publisherConn struct {
	conn    *conn
	log     *slog.Logger
	running *sync.WaitGroup
	closed  chan struct{} // closed when the connection has ended
	opening chan struct{} // held while a channel is opened

	progress progress

	mu       sync.Mutex // guards the fields below
	ended    bool
	channels map[string]*confirmChannel // the current one of each exchange
	alarm    *alarm                     // nil while the broker accepts publishes
}

// An alarm is a period in which the broker blocks publishers.
type alarm struct {
	reason string
	off    chan struct{} // closed at its end
}

func newPublisherConn(w *conn, cfg *Config, running *sync.WaitGroup) *publisherConn {
	c := &publisherConn{conn: w, log: cfg.Log, running: running, closed: make(chan struct{}), opening: make(chan struct{}, 1), channels: map[string]*confirmChannel{}}
	closes := w.client.NotifyClose(make(chan *amqp.Error, 1))
	blocks := w.client.NotifyBlocked(make(chan amqp.Blocking, 16))
	running.Go(func() {
		for closes != nil {
			select {
			case e := <-closes:
				c.end(e, w.cutFor())
				closes = nil
			case b, ok := <-blocks:
				if !ok {
					blocks = nil
					continue
				}
				c.block(b)
			}
		}
	})
	running.Go(func() { c.resolve(cfg.ConfirmWithin / looksWithin) })
	return c
}

// resolve answers the confirmed publishes after each read from the socket, and each
// interval the silent ones. A publish needs no goroutine, and none waits for
// another's confirmation.
func (c *publisherConn) resolve(interval time.Duration) {
	often, look := time.NewTicker(resolveAnyhow), time.NewTicker(interval)
	defer often.Stop()
	defer look.Stop()
	for {
		select {
		case <-c.conn.out.handled:
			c.resolveConfirms()
		case <-often.C:
			c.resolveConfirms()
		case <-look.C:
			c.resolveConfirms()
			c.declareSilent()
		case <-c.closed:
			return
		}
	}
}

// resolveAnyhow is the poll interval for confirmations, in case the library comes
// to handle a read later than it does now.
const resolveAnyhow = 50 * time.Millisecond

func (c *publisherConn) resolveConfirms() {
	for _, ch := range c.open() {
		ch.resolveConfirms()
	}
}

// declareSilent answers the publishes about which the broker is silent while it
// confirms later ones. It cuts the connection if the rest halts after that: a
// broker stops reading after a few dozen messages to a silent quorum queue, or a
// few hundred to a classic one, and a new connection is free of that. It cuts it, too, when a
// silent publish is distant.
func (c *publisherConn) declareSilent() {
	l := c.progress.observe(c.raised() != nil)
	anySilent, anyDistant, anyHalted := false, false, false
	for _, ch := range c.open() {
		ch.declareSilent(l)
		silent, distant, halted := ch.state(l)
		anySilent, anyDistant, anyHalted = anySilent || silent, anyDistant || distant, anyHalted || halted
	}
	switch {
	case anySilent && anyHalted:
		c.cut(errors.New("the broker is silent about some messages and has stopped confirming the others"))
	case anyDistant:
		c.cut(fmt.Errorf("the broker is silent about a message and has confirmed more than %d later ones", maxOvertaken))
	}
}

// expire answers the overtaken publishes of b, whose context has ended with err. If
// more of b are unconfirmed it cuts the connection: they might be sent later.
func (c *publisherConn) expire(b *publishBatch, err error) {
	c.resolveConfirms()
	blocked, left := c.raised() != nil, 0
	for _, ch := range c.open() {
		left += ch.expire(b, blocked)
	}
	if left > 0 {
		c.cut(c.blamingAlarm(fmt.Errorf("not confirmed in time: %w", err)))
	}
}

// open returns the current channels.
func (c *publisherConn) open() []*confirmChannel {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.channels))
}

// broken ends a connection after a failed write. The broker's own reason takes
// precedence if it arrives in time.
func (c *publisherConn) broken(err error) {
	select {
	case <-c.closed:
	case <-time.After(lastWords):
		c.cut(fmt.Errorf("write: %w", err))
	}
}

// lastWords bounds the wait for the broker's reason after a failed write.
const lastWords = 200 * time.Millisecond

func (c *publisherConn) block(b amqp.Blocking) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.alarm != nil {
		close(c.alarm.off)
		c.alarm = nil
	}
	if b.Active {
		c.alarm = &alarm{b.Reason, make(chan struct{})}
		c.log.Warn("the broker blocks publishers", slog.String("reason", b.Reason))
	} else {
		c.log.Info("the broker accepts publishes again")
	}
}

func (c *publisherConn) raised() *alarm {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.alarm
}

// clear waits for the end of an alarm.
func (c *publisherConn) clear(ctx context.Context) error {
	for {
		a := c.raised()
		if a == nil {
			if ctx.Err() != nil {
				return unavailable("publish", ctx.Err())
			}
			return nil
		}
		select {
		case <-a.off:
		case <-c.closed:
			return unavailable("publish", c.lost())
		case <-ctx.Done():
			return fmt.Errorf("%w: %w: %s", waybill.ErrUnavailable, errBlocked, a.reason)
		}
	}
}

// blamingAlarm adds an alarm to err, if there is one.
func (c *publisherConn) blamingAlarm(err error) error {
	if a := c.raised(); a != nil {
		return fmt.Errorf("%w: %s: %w", errBlocked, a.reason, err)
	}
	return err
}

// channel returns a channel to publish to exchange, and opens one when there is
// none or the last one has ended.
func (c *publisherConn) channel(ctx context.Context, exchange string) (*confirmChannel, error) {
	if ch := c.find(exchange); ch != nil {
		return ch, nil
	}
	select {
	case c.opening <- struct{}{}:
		defer func() { <-c.opening }()
	case <-ctx.Done():
		return nil, unavailable("open a channel", ctx.Err())
	}
	if ch := c.find(exchange); ch != nil {
		return ch, nil
	}
	var ch *amqp.Channel
	err := c.conn.until(ctx, func() (err error) {
		if ch, err = c.conn.client.Channel(); err == nil {
			err = ch.Confirm(false)
		}
		return err
	})
	if err != nil {
		return nil, unavailable("open a channel", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, unavailable("open a channel", c.lost())
	}
	c.channels[exchange] = newConfirmChannel(c, ch)
	return c.channels[exchange], nil
}

func (c *publisherConn) find(exchange string) *confirmChannel {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch := c.channels[exchange]; ch != nil && !ch.isClosed() {
		return ch
	}
	return nil
}

// lost returns the reason for the connection's end.
func (c *publisherConn) lost() error {
	if cause := c.conn.cutFor(); cause != nil {
		return cause
	}
	return amqp.ErrClosed
}

// cut ends the connection at once and answers the unconfirmed publishes.
func (c *publisherConn) cut(cause error) {
	c.conn.cut(cause)
	c.end(nil, c.conn.cutFor())
}

// end answers the unconfirmed publishes of a connection that ended with e or was cut
// for cause. Only the first call counts.
func (c *publisherConn) end(e *amqp.Error, cause error) {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return
	}
	c.ended = true
	channels := c.channels
	c.mu.Unlock()
	var lost []*publish
	for _, ch := range channels {
		lost = append(lost, ch.end(e)...)
	}
	close(c.closed) // last: no goroutine is added to running after it
	answer := verdict(lost, e, cause)
	for _, p := range lost {
		p.answer(answer(p))
	}
	if errors.Is(cause, errPublisherClosed) {
		return
	}
	if cause == nil {
		cause = said(e)
	}
	c.log.Debug("connection to publish ended", slog.Int("unconfirmed", len(lost)), slog.Any("err", cause))
}
