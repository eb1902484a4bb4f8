package wayamqp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

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

	mu      sync.Mutex  // guards what follows
	pending []*publish  // in the order of sending; nil once the channel has ended
	err     *amqp.Error // how it ended
}

// A publish is one record on its way to the broker.
type publish struct {
	no            uint64 // the header x-publish-no
	seq           int
	call          *call
	exchange, key string

	// Guarded by the outlet's mu:
	confirm  *amqp.DeferredConfirmation // nil until it is written
	returned *amqp.Return
	judged   bool // it is pending no more
}

func (p *publish) answer(err error) {
	p.call.flying.Add(-1)
	p.call.done(p.seq, err)
}

// newOutlet is called with link.mu held, on a link that has not ended.
func newOutlet(l *link, ch *amqp.Channel) *outlet {
	o := &outlet{
		link: l, ch: ch, over: make(chan struct{}), pending: []*publish{},
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

// slot waits until there is room for p.
func (o *outlet) slot(ctx context.Context, p *publish) error {
	select {
	case o.slots <- struct{}{}:
		return nil
	case <-o.over:
		return o.unsent(p)
	case <-ctx.Done():
		return unavailable("publish", ctx.Err())
	}
}

// send writes p, which has a slot.
func (o *outlet) send(ctx context.Context, p *publish, msg amqp.Publishing) {
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
		return
	}
	confirm, err := o.ch.PublishWithDeferredConfirm(p.exchange, p.key, true, false, msg)
	switch {
	case err == nil:
		o.written(p, confirm)
	case errors.Is(err, amqp.ErrClosed):
		// Nothing was written, or not all of it. The end is being told.
		<-o.over
	default:
		o.link.broken(err)
	}
}

// add makes p unresolved, unless the channel has ended.
func (o *outlet) add(p *publish) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pending == nil {
		return false
	}
	p.call.flying.Add(1)
	o.pending = append(o.pending, p)
	return true
}

// written says which confirmation is p's. It may have come already.
func (o *outlet) written(p *publish, confirm *amqp.DeferredConfirmation) {
	o.mu.Lock()
	p.confirm = confirm
	decided := p.decided()
	o.mu.Unlock()
	if decided {
		o.judge()
	}
}

// remove takes back p, which was not written. It reports false when p has been
// answered with the end of the channel.
func (o *outlet) remove(p *publish) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := slices.Index(o.pending, p)
	if i < 0 {
		return false
	}
	o.pending = slices.Delete(o.pending, i, i+1)
	<-o.slots
	return true
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

// judge answers all whose confirmation has come. The library hands over a return
// before it resolves the confirmation of the same message: a return that is
// taken in only now still counts.
func (o *outlet) judge() {
	o.mu.Lock()
	var decided []*publish
	for _, p := range o.pending {
		if p.decided() {
			decided = append(decided, p)
		}
	}
	if !mutant.Active(mutant.ReturnsNotDrained) && !mutant.Active(mutant.ConfirmBeforeReturn) {
		o.drain()
	}
	// What is not acknowledged because the channel has ended is no nack: the end
	// answers it.
	ended := o.ch.IsClosed()
	decided = slices.DeleteFunc(decided, func(p *publish) bool {
		p.judged = p.returned != nil || p.confirm.Acked() || !ended
		return !p.judged
	})
	o.pending = slices.DeleteFunc(o.pending, func(p *publish) bool { return p.judged })
	o.mu.Unlock()
	for _, p := range decided {
		<-o.slots
		p.answer(p.outcome())
	}
	if mutant.Active(mutant.ConfirmBeforeReturn) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.drain()
	}
}

// decided reports whether p's confirmation has come, or will not come any more.
// The outlet's mu is held.
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
			if i := slices.IndexFunc(o.pending, func(p *publish) bool { return p.no == no }); i >= 0 {
				o.pending[i].returned = &r
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
