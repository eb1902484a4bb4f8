package wayamqp

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/internal/mutant"
	"github.com/waybill-go/waybill/outbox"
)

// maxUnresolved bounds what is unconfirmed on a channel, and so what the broker
// may return: the library drops a return when there is no room for it, and then
// takes the message for stored.
const maxUnresolved = 4096

// An outlet is a channel in confirm mode over which one exchange is published
// to, so that a channel that the broker closes takes no other exchange along.
type outlet struct {
	link    *link
	ch      *amqp.Channel
	returns chan amqp.Return
	slots   chan struct{} // one for each that is unresolved
	over    chan struct{} // closed when the channel has ended

	mu      sync.Mutex // guards what follows
	pending map[uint64]*publish
	err     *amqp.Error // how it ended
}

// A publish is one record on its way to the broker.
type publish struct {
	no            uint64 // the header x-publish-no
	seq           int
	call          *call
	exchange, key string

	confirm  *amqp.DeferredConfirmation // guarded by the outlet's mu, like returned; nil until it is written
	returned *amqp.Return
}

func (p *publish) answer(err error) {
	p.call.flying.Add(-1)
	p.call.done(p.seq, err)
}

// newOutlet is called with link.mu held, on a link that has not ended.
func newOutlet(l *link, ch *amqp.Channel) *outlet {
	o := &outlet{
		link: l, ch: ch, over: make(chan struct{}), pending: map[uint64]*publish{},
		returns: ch.NotifyReturn(make(chan amqp.Return, maxUnresolved)), slots: make(chan struct{}, maxUnresolved),
	}
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	l.running.Go(func() { o.ended(<-closes) })
	return o
}

func (o *outlet) isOver() bool {
	select {
	case <-o.over:
		return true
	default:
		return false
	}
}

// send writes p. It returns early when the broker has ended the channel.
func (o *outlet) send(ctx context.Context, p *publish, msg amqp.Publishing) {
	select {
	case o.slots <- struct{}{}:
	case <-o.over:
		p.call.done(p.seq, o.unsent(p))
		return
	case <-ctx.Done():
		p.call.done(p.seq, unavailable("publish", ctx.Err()))
		return
	}
	if !o.add(p) {
		p.call.done(p.seq, o.unsent(p))
		return
	}
	// From here on the end of ctx cuts the connection. If it has ended just
	// before, nobody does, and p must not be sent.
	if ctx.Err() != nil {
		if o.remove(p) {
			p.answer(unavailable("publish", ctx.Err()))
		}
		o.link.running.Done()
		return
	}
	confirm, err := o.ch.PublishWithDeferredConfirm(p.exchange, p.key, true, false, msg)
	switch {
	case err == nil:
		o.mu.Lock()
		p.confirm = confirm
		o.mu.Unlock()
		go func() { // waited for through link.running: see add
			defer o.link.running.Done()
			<-confirm.Done()
			o.judge(p)
		}()
		return
	case errors.Is(err, amqp.ErrClosed):
		// Nothing was written, or not all of it. The end is being told.
		<-o.over
	default:
		// A broken socket. If the broker has said why, its words come first.
		select {
		case <-o.over:
		case <-time.After(lastWords):
			o.link.cut(fmt.Errorf("write: %w", err))
		}
	}
	o.link.running.Done()
}

// lastWords is how long the broker's reason may take to arrive after a write
// failed.
const lastWords = 200 * time.Millisecond

// add makes p unresolved, unless the channel has ended.
func (o *outlet) add(p *publish) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pending == nil {
		return false
	}
	p.call.flying.Add(1)
	o.pending[p.no] = p
	o.link.running.Add(1)
	return true
}

// remove takes back p, which was not written. It reports false when p has been
// answered with the end of the channel.
func (o *outlet) remove(p *publish) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, open := o.pending[p.no]
	if open {
		delete(o.pending, p.no)
		<-o.slots
	}
	return open
}

// unsent says why p was not sent on a channel that has ended.
func (o *outlet) unsent(p *publish) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil && o.err.Server && o.err.Code == amqp.NotFound {
		return unroutable(p, o.err)
	}
	if o.err == nil {
		return unavailable("not sent", o.link.lost())
	}
	return unavailable("not sent", o.err)
}

// judge answers p after its confirmation came. The library hands over a return
// before it resolves the confirmation of the same message: a return that is
// taken in only now still counts.
func (o *outlet) judge(p *publish) {
	o.mu.Lock()
	if !mutant.Active(mutant.ReturnsNotDrained) {
		o.drain()
	}
	_, open := o.pending[p.no]
	acked := p.confirm.Acked()
	if !open || !acked && p.returned == nil && o.ch.IsClosed() {
		o.mu.Unlock()
		return // answered by the end of the channel, or will be: that is no nack
	}
	delete(o.pending, p.no)
	err := p.outcome()
	if mutant.Active(mutant.ReturnsNotDrained) {
		o.drain()
	}
	o.mu.Unlock()
	<-o.slots
	p.answer(err)
}

// outcome judges what the broker has confirmed or returned.
func (p *publish) outcome() error {
	switch r := p.returned; {
	case r != nil:
		return &outbox.UnroutableError{Exchange: p.exchange, RoutingKey: p.key, Reason: fmt.Sprintf("%d %s: no queue is bound for it", r.ReplyCode, r.ReplyText)}
	case !p.confirm.Acked():
		return errors.New("the broker refused it (nack)")
	}
	return nil
}

// drain takes in the returns that have arrived, without waiting. mu is held.
func (o *outlet) drain() {
	for {
		select {
		case r, ok := <-o.returns:
			if !ok {
				return
			}
			text, _ := r.Headers[headerPublishNo].(string)
			no, _ := strconv.ParseUint(text, 10, 64)
			if p := o.pending[no]; p != nil {
				p.returned = &r
			}
		default:
			return
		}
	}
}

// ended hears of the channel's end from the library.
func (o *outlet) ended(e *amqp.Error) {
	if !isSoft(e) {
		o.link.end(e, o.link.wire.cutFor())
		return
	}
	lost := o.end(e)
	answer := verdict(lost, e, o.link.wire.cutFor())
	for _, p := range lost {
		p.answer(answer(p))
	}
}

// end closes the books: it answers what the broker has decided and returns what
// it has not. A second call returns nothing.
func (o *outlet) end(e *amqp.Error) (lost []*publish) {
	o.mu.Lock()
	if o.pending == nil {
		o.mu.Unlock()
		return nil
	}
	o.drain()
	var known []*publish
	for _, p := range o.pending {
		if p.returned != nil || p.confirm != nil && p.confirm.Acked() {
			known = append(known, p)
		} else {
			lost = append(lost, p)
		}
	}
	o.pending, o.err = nil, e
	o.mu.Unlock()
	close(o.over)
	for _, p := range known {
		p.answer(p.outcome())
	}
	return lost
}
