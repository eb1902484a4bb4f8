package wayamqp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/outbox"
)

// maxUnresolved bounds the unconfirmed publishes of a channel, and so its unread
// returns: the library drops a return that finds its buffer full, and the message
// would count as stored.
const maxUnresolved = 4096

// A confirmChannel is a channel in confirm mode for a single exchange, so that a
// channel closed by the broker affects no other exchange.
type confirmChannel struct {
	conn    *publisherConn
	ch      *amqp.Channel
	returns chan amqp.Return
	slots   chan struct{} // one per unconfirmed publish
	closed  chan struct{} // closed when the channel has ended

	mu      sync.Mutex  // guards the fields below
	pending []*publish  // unconfirmed, in the order of sending; nil once the channel has ended
	silent  int         // number of pending that were answered as unconfirmed
	err     *amqp.Error // the reason of the end
}

// A publish is one record in flight to the broker.
type publish struct {
	id            string // the message id
	seq           int
	batch         *publishBatch
	exchange, key string

	// Guarded by the channel's mu:
	confirm  *amqp.DeferredConfirmation // nil until it is written
	mark     mark
	returned *amqp.Return
	resolved bool // no longer pending
	answered bool // as unconfirmed; a late confirmation is ignored
}

func (p *publish) answer(err error) { p.batch.done(p.seq, err) }

// newConfirmChannel is called with conn.mu held, on a connection that has not
// ended.
func newConfirmChannel(conn *publisherConn, ch *amqp.Channel) *confirmChannel {
	c := &confirmChannel{
		conn: conn, ch: ch, closed: make(chan struct{}), pending: []*publish{},
		returns: ch.NotifyReturn(make(chan amqp.Return, maxUnresolved)), slots: make(chan struct{}, maxUnresolved),
	}
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	conn.running.Go(func() { c.ended(<-closes) })
	return c
}

func (c *confirmChannel) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// slot waits for a free slot for p.
func (c *confirmChannel) slot(ctx context.Context, p *publish) error {
	select {
	case c.slots <- struct{}{}:
		return nil
	case <-c.closed:
		return c.unsent(p)
	case <-ctx.Done():
		return unavailable("publish", ctx.Err())
	}
}

// send writes p, which has a slot.
func (c *confirmChannel) send(ctx context.Context, p *publish, msg amqp.Publishing) {
	if !c.add(p) {
		p.answer(c.unsent(p))
		return
	}
	// From here on expire answers p when ctx ends. If ctx ended just before, expire
	// has not seen p, and p must not be sent.
	if ctx.Err() != nil {
		if c.remove(p) {
			p.answer(unavailable("publish", ctx.Err()))
		}
		return
	}
	confirm, err := c.ch.PublishWithDeferredConfirm(p.exchange, p.key, true, false, msg)
	switch {
	case err == nil:
		c.written(p, confirm)
	case errors.Is(err, amqp.ErrClosed):
		// Written in part or not at all. The channel's end is being notified and
		// answers p.
		<-c.closed
	default:
		c.conn.broken(err)
	}
}

// add makes p pending, unless the channel has ended.
func (c *confirmChannel) add(p *publish) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending == nil {
		return false
	}
	p.mark.number = c.conn.progress.begin()
	c.pending = append(c.pending, p)
	return true
}

// written records p's confirmation, which may have arrived already.
func (c *confirmChannel) written(p *publish, confirm *amqp.DeferredConfirmation) {
	c.mu.Lock()
	p.confirm = confirm
	c.conn.progress.written(&p.mark)
	decided := p.decided()
	c.mu.Unlock()
	if decided {
		c.resolveConfirms()
	}
}

// remove withdraws p, which was not written. It returns false if the channel's end
// has answered p.
func (c *confirmChannel) remove(p *publish) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.pending, p)
	if i < 0 {
		return false
	}
	c.pending = slices.Delete(c.pending, i, i+1)
	<-c.slots
	return true
}

// unsent returns the error of p, which was not sent because the channel has ended.
func (c *confirmChannel) unsent(p *publish) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil && c.err.Server && c.err.Code == amqp.NotFound {
		return unroutable(p, c.err)
	}
	if c.err == nil {
		return unavailable("not sent", c.conn.lost())
	}
	return unavailable("not sent", c.err)
}

// resolveConfirms answers the publishes whose confirmation has arrived. The library
// delivers a return before it resolves the confirmation of the same message, so a
// return that is read only now still counts.
func (c *confirmChannel) resolveConfirms() {
	c.mu.Lock()
	var decided []*publish
	for _, p := range c.pending {
		if p.decided() {
			decided = append(decided, p)
		}
	}
	c.drainReturns()
	// A confirmation resolved by the channel's end is no nack: end answers it.
	ended := c.ch.IsClosed()
	decided = slices.DeleteFunc(decided, func(p *publish) bool {
		p.resolved = p.returned != nil || p.confirm.Acked() || !ended
		return !p.resolved
	})
	c.pending = slices.DeleteFunc(c.pending, func(p *publish) bool { return p.resolved })
	for _, p := range decided {
		c.conn.progress.confirm(p.mark)
		if p.answered {
			c.silent--
		}
	}
	c.mu.Unlock()
	for _, p := range decided {
		<-c.slots
		if !p.answered {
			p.answer(p.outcome())
		}
	}
}

// decided reports whether p's confirmation was resolved, by the broker or by the
// channel's end. The channel's mu is held.
func (p *publish) decided() bool {
	if p.confirm == nil {
		return false
	}
	select {
	case <-p.confirm.Done():
		return true
	default:
		return false
	}
}

// outcome is the result of a confirmed or returned publish.
func (p *publish) outcome() error {
	switch r := p.returned; {
	case r != nil:
		return &outbox.UnroutableError{Exchange: p.exchange, RoutingKey: p.key, Reason: fmt.Sprintf("%d %s: no queue is bound for it", r.ReplyCode, r.ReplyText)}
	case !p.confirm.Acked():
		return &outbox.RejectedError{Reason: fmt.Sprintf("the broker refused it (nack): exchange %q, routing key %q: is a queue bound there full, or unavailable?", p.exchange, p.key)}
	}
	return nil
}

// drainReturns reads the buffered returns without waiting. A return counts for
// every pending publish of its message to its routing key: of two copies in flight
// either may be the returned one, and publishing the other again does no harm. mu
// is held.
func (c *confirmChannel) drainReturns() {
	for {
		select {
		case r, ok := <-c.returns:
			if !ok {
				return
			}
			for _, p := range c.pending {
				if p.id == r.MessageId && p.key == r.RoutingKey {
					p.returned = &r
				}
			}
		default:
			return
		}
	}
}

// declareSilent answers the silent publishes as unconfirmed. Their slots stay taken
// until their confirmations arrive or the channel ends.
func (c *confirmChannel) declareSilent(l observation) {
	c.declareUnconfirmed(func(p *publish) bool { return l.silent(p.mark) })
}

// state reports whether some publishes were answered as unconfirmed, whether one of these is
// distant, and whether some unanswered ones have halted.
func (c *confirmChannel) state(l observation) (silent, distant, halted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	distant = slices.ContainsFunc(c.pending, func(p *publish) bool { return p.answered && l.distant(p.mark) })
	halted = slices.ContainsFunc(c.pending, func(p *publish) bool { return p.confirm != nil && !p.answered && l.halted(p.mark) })
	return c.silent > 0, distant, halted
}

// expire answers the overtaken publishes of b as unconfirmed, unless the broker
// blocks publishers, and counts the remaining unconfirmed ones of b.
func (c *confirmChannel) expire(b *publishBatch, blocked bool) (left int) {
	if !blocked {
		c.declareUnconfirmed(func(p *publish) bool { return p.batch == b && c.conn.progress.overtaken(p.mark) })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pending {
		if p.batch == b && !p.answered {
			left++
		}
	}
	return left
}

// declareUnconfirmed answers the written publishes selected by which.
func (c *confirmChannel) declareUnconfirmed(which func(*publish) bool) {
	c.mu.Lock()
	var chosen []*publish
	for _, p := range c.pending {
		if p.confirm != nil && !p.answered && !p.decided() && which(p) {
			p.answered = true
			chosen = append(chosen, p)
		}
	}
	c.silent += len(chosen)
	crowded := len(chosen) > 0 && c.silent > maxUnresolved/2
	c.mu.Unlock()
	for _, p := range chosen {
		p.answer(&outbox.UnconfirmedError{Exchange: p.exchange, RoutingKey: p.key, After: time.Since(p.mark.sent)})
	}
	if crowded {
		c.conn.cut(fmt.Errorf("exchange %q: more than %d publishes are unconfirmed", chosen[0].exchange, maxUnresolved/2))
	}
}

// ended handles the library's notification of the channel's end.
func (c *confirmChannel) ended(e *amqp.Error) {
	if !isSoft(e) {
		c.conn.end(e, c.conn.conn.cutFor())
		return
	}
	lost := c.end(e)
	answer := verdict(lost, e, c.conn.conn.cutFor())
	for _, p := range lost {
		p.answer(answer(p))
	}
}

// end answers the publishes that the broker has acked or returned, and returns the
// rest. A second call returns nothing.
func (c *confirmChannel) end(e *amqp.Error) (lost []*publish) {
	c.mu.Lock()
	if c.pending == nil {
		c.mu.Unlock()
		return nil
	}
	known, lost := c.divide(c.drainReturns)
	c.pending, c.err = nil, e
	c.mu.Unlock()
	close(c.closed)
	for _, p := range known {
		p.answer(p.outcome())
	}
	return lost
}

// divide returns the unanswered publishes that the broker has acked or returned, and the
// others. The library may still be reading: it delivers a return before the ack of the same
// message, so only acks count that had arrived before drain reads the returns. mu is held.
func (c *confirmChannel) divide(drain func()) (known, lost []*publish) {
	acked := make([]bool, len(c.pending))
	for i, p := range c.pending {
		acked[i] = p.confirm != nil && p.confirm.Acked()
	}
	drain()
	for i, p := range c.pending {
		switch {
		case p.answered:
		case p.returned != nil || acked[i]:
			known = append(known, p)
		default:
			lost = append(lost, p)
		}
	}
	return known, lost
}
