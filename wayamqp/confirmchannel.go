package wayamqp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/internal/mutant"
	"github.com/waybill-go/waybill/outbox"
)

// maxUnresolved bounds the unconfirmed publishes of a channel, and so the returns
// that may come: the library drops a return when there is no room for it, and then
// takes the message for stored.
const maxUnresolved = 4096

// A confirmChannel is a channel in confirm mode over which one exchange is
// published to, so that a channel that the broker closes takes no other exchange
// along.
type confirmChannel struct {
	conn    *publisherConn
	ch      *amqp.Channel
	returns chan amqp.Return
	slots   chan struct{} // one for each that is unconfirmed
	closed  chan struct{} // closed when the channel has ended

	mu      sync.Mutex  // guards what follows
	pending []*publish  // unconfirmed, in the order of sending; nil once the channel has ended
	silent  int         // how many of them were answered as unconfirmed
	err     *amqp.Error // how it ended
}

// A publish is one record on its way to the broker.
type publish struct {
	id            string // of the message
	seq           int
	batch         *publishBatch
	exchange, key string

	// Guarded by the channel's mu:
	confirm  *amqp.DeferredConfirmation // nil until it is written
	mark     mark
	returned *amqp.Return
	resolved bool // it is pending no more
	answered bool // as unconfirmed: whatever comes now is ignored
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

// slot waits until there is room for p.
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
	// From here on p is answered when ctx ends. If it has ended just before, the
	// watch has not seen p, and p must not be sent.
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
		// Nothing was written, or not all of it. The end is being told.
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

// written says which confirmation is p's. It may have come already.
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

// remove takes back p, which was not written. It reports false when p has been
// answered with the end of the channel.
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

// unsent says why p was not sent on a channel that has ended.
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

// resolveConfirms answers all whose confirmation has come. The library hands
// over a return before it resolves the confirmation of the same message: a
// return that is taken in only now still counts.
func (c *confirmChannel) resolveConfirms() {
	c.mu.Lock()
	var decided []*publish
	for _, p := range c.pending {
		if p.decided() {
			decided = append(decided, p)
		}
	}
	if !mutant.Active(mutant.ReturnsNotDrained) && !mutant.Active(mutant.ConfirmBeforeReturn) {
		c.drainReturns()
	}
	// A confirmation that was resolved because the channel has ended is no nack:
	// the end answers it.
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
	if mutant.Active(mutant.ConfirmBeforeReturn) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.drainReturns()
	}
}

// decided reports whether p's confirmation has come, or will not come any more.
// The channel's mu is held.
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

// outcome judges what the broker has confirmed or returned.
func (p *publish) outcome() error {
	switch r := p.returned; {
	case r != nil:
		return &outbox.UnroutableError{Exchange: p.exchange, RoutingKey: p.key, Reason: fmt.Sprintf("%d %s: no queue is bound for it", r.ReplyCode, r.ReplyText)}
	case !p.confirm.Acked():
		return &outbox.RejectedError{Reason: "the broker refused it (nack)"}
	}
	return nil
}

// drainReturns takes in the returns that have arrived, without waiting. A return
// counts for every pending publish of its message to its routing key: of two
// copies in flight, either may be the one that was returned, and the other one
// may be published again without harm. mu is held.
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

// declareSilent answers the silent publishes, and keeps their places until their
// confirmations come or the channel ends.
func (c *confirmChannel) declareSilent(l sighting) {
	c.declareUnconfirmed(func(p *publish) bool { return l.silent(p.mark) })
}

// state reports whether the broker is silent about some publishes, and whether
// others have come to a halt.
func (c *confirmChannel) state(l sighting) (silent, halted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	halted = slices.ContainsFunc(c.pending, func(p *publish) bool { return p.confirm != nil && !p.answered && l.halted(p.mark) })
	return c.silent > 0, halted
}

// expire answers those of b that were overtaken, unless the broker blocks
// publishers, and counts the others that are unconfirmed.
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

// declareUnconfirmed answers the written publishes that which selects.
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
	crowded := c.silent > maxUnresolved/2
	c.mu.Unlock()
	for _, p := range chosen {
		p.answer(&outbox.UnconfirmedError{Exchange: p.exchange, RoutingKey: p.key, After: time.Since(p.mark.sent)})
	}
	if crowded {
		c.conn.cut(fmt.Errorf("exchange %q: more than %d publishes are unconfirmed", chosen[0].exchange, maxUnresolved/2))
	}
}

// ended hears of the channel's end from the library.
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

// end closes the books: it answers what the broker has decided and returns what
// it has not. A second call returns nothing.
func (c *confirmChannel) end(e *amqp.Error) (lost []*publish) {
	c.mu.Lock()
	if c.pending == nil {
		c.mu.Unlock()
		return nil
	}
	c.drainReturns()
	var known []*publish
	for _, p := range c.pending {
		switch {
		case p.answered:
		case p.returned != nil || p.confirm != nil && p.confirm.Acked():
			known = append(known, p)
		default:
			lost = append(lost, p)
		}
	}
	c.pending, c.err = nil, e
	c.mu.Unlock()
	close(c.closed)
	for _, p := range known {
		p.answer(p.outcome())
	}
	return lost
}
