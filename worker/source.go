package worker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/crash"
	"github.com/waybill-go/waybill/internal/keyorder"
)

// A source is a receiver of a running worker, with the deliveries that it has in flight.
// Its queue, busy and acking belong to coordinate.
type source struct {
	waybill.Receiver
	retries  RetryQueue // the same receiver, if it is the store's
	prefetch int
	slots    int // how many handlers run at most for it
	ahead    int // how many messages besides wait for Config.Slots
	queue    *keyorder.HandleQueue
	busy     int
	acking   int      // handled, and not yet acknowledged
	room     chan int // how many messages to receive
	acks     chan *waybill.Delivery
	watched  <-chan struct{} // the connection that a goroutine waits for the end of

	mu     sync.Mutex // guards the fields below, and the claims
	held   map[*waybill.Delivery]*claim
	cutOff bool // the last renewal failed
}

// A claim is a worker's right to a delivery that it has not settled.
type claim struct {
	cancel context.CancelCauseFunc // nil until its handlers run
	until  time.Time               // end of the lease; zero without leases
	lost   bool
	outage bool // its handlers have met one
	worked int  // running.worked then
}

func newSource(from waybill.Receiver, retries RetryQueue, prefetch, slots int) *source {
	return &source{
		Receiver: from, retries: retries, prefetch: prefetch, slots: slots,
		// With an equal share of the prefetch a full queue has a message for every handler.
		queue: keyorder.NewHandleQueue(prefetch / slots),
		room:  make(chan int), acks: make(chan *waybill.Delivery, prefetch+slots), held: map[*waybill.Delivery]*claim{},
	}
}

// hold begins the claims of deliveries that have arrived.
func (s *source) hold(ds []*waybill.Delivery) {
	var until time.Time
	if lease := s.LeaseTime(); lease > 0 {
		until = time.Now().Add(lease)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range ds {
		s.held[d] = &claim{until: until}
	}
}

// begin notes how to stop the handlers of d. It reports false if d has been lost.
func (s *source) begin(d *waybill.Delivery, cancel context.CancelCauseFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.held[d]
	c.cancel = cancel
	return !c.gone(d)
}

// meetsOutage notes that the handlers of d have met an outage. It reports whether that was so before, and
// running.worked at the first time.
func (s *source) meetsOutage(d *waybill.Delivery, worked int) (first int, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.held[d]
	if again = c.outage; !again {
		c.outage, c.worked = true, worked
	}
	return c.worked, again
}

// lost reports whether d has passed to another worker, as far as this one knows.
func (s *source) lost(d *waybill.Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[d].gone(d)
}

// gone reports whether the lease or the connection of d has ended.
func (c *claim) gone(d *waybill.Delivery) bool {
	select {
	case <-d.Lost:
		return true
	default:
		return c.lost || c.ended(time.Now())
	}
}

// ended reports whether the lease has ended by the monotonic clock: renewing it did not
// succeed in time.
func (c *claim) ended(now time.Time) bool { return !c.until.IsZero() && !now.Before(c.until) }

// forget ends the claims of ds.
func (s *source) forget(ds ...*waybill.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range ds {
		delete(s.held, d)
	}
}

// holds reports whether d is unsettled.
func (s *source) holds(d *waybill.Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[d] != nil
}

// unsettled returns how many deliveries are.
func (s *source) unsettled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
}

// drop forgets ds without an acknowledgement.
func (s *source) drop(ds ...*waybill.Delivery) {
	s.queue.Settled(len(ds))
	s.forget(ds...)
}

// lose marks the claims for which lost is true, and stops their handlers.
func (s *source) lose(lost func(d *waybill.Delivery, c *claim) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, c := range s.held {
		if !c.lost && lost(d, c) {
			c.lost = true
			if c.cancel != nil {
				c.cancel(waybill.ErrLeaseLost)
			}
		}
	}
}

// watch stops the handlers of a connection's deliveries when it has ended. It ends with
// ctx.
func (s *source) watch(ctx context.Context, connection <-chan struct{}) {
	select {
	case <-connection:
		s.lose(func(d *waybill.Delivery, _ *claim) bool { return d.Lost == connection })
	case <-ctx.Done():
	}
}

// renew renews the leases of unsettled deliveries and stops the handlers of those whose
// lease is lost, or has ended. It ends with work.
func (s *source) renew(r *running) {
	lease, this := s.LeaseTime(), loop{s, "renew"}
	tick := time.NewTicker(lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-r.work.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		ds := make([]*waybill.Delivery, 0, len(s.held))
		for d := range s.held {
			ds = append(ds, d)
		}
		s.mu.Unlock()
		if len(ds) == 0 {
			r.outage.Worked(r.work, this) // or without deliveries it would never end
			continue
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(r.work, lease/3)
		lost, err := s.Renew(ctx, ds...)
		cancel()
		if err != nil && r.work.Err() == nil {
			r.outage.Failed(r.work, this, "leases not renewed, will try again", slog.Any("err", err))
		}
		isLost := map[*waybill.Delivery]bool{}
		for _, d := range lost {
			isLost[d] = true
		}
		if err == nil {
			r.outage.Worked(r.work, this)
			s.renewed(slices.DeleteFunc(ds, func(d *waybill.Delivery) bool { return isLost[d] }), began.Add(lease))
		}
		s.mu.Lock()
		s.cutOff = err != nil
		s.mu.Unlock()
		now := time.Now()
		s.lose(func(d *waybill.Delivery, c *claim) bool { return isLost[d] || c.ended(now) })
	}
}

func (s *source) renewed(ds []*waybill.Delivery, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range ds {
		if c := s.held[d]; c != nil {
			c.until = until
		}
	}
}

// release returns ds to the transport unhandled.
func (s *source) release(r *running, ds []*waybill.Delivery) {
	if len(ds) == 0 {
		return
	}
	ctx, cancel := r.settling(giveBackTimeout)
	defer cancel()
	if err := s.Release(ctx, ds...); err != nil && !errors.Is(err, waybill.ErrLeaseLost) {
		r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "release failed, the messages come again when their leases end", slog.String("transport", r.cfg.Transport), slog.Int("messages", len(ds)), slog.Any("err", err))
	}
	s.drop(ds...)
}

// giveBack releases d, the deliveries behind it and those in behind, and ends its key. While
// renewals fail, deliveries whose lease has ended are dropped: each release would wait for its
// timeout. Otherwise they are released although their lease has ended, or they would come again
// as redelivered.
func (s *source) giveBack(r *running, d *waybill.Delivery, behind ...*waybill.Delivery) {
	now := time.Now()
	var ended, held []*waybill.Delivery
	s.mu.Lock()
	for _, d := range slices.Concat([]*waybill.Delivery{d}, behind, s.queue.Failed(d), s.queue.Forget(d)) {
		if c := s.held[d]; s.cutOff && c != nil && c.ended(now) {
			ended = append(ended, d)
		} else {
			held = append(held, d)
		}
	}
	s.mu.Unlock()
	s.drop(ended...)
	s.release(r, held)
}

// maxAcks is how many deliveries one call acknowledges at most.
const maxAcks = 200

// linger is how long a settled delivery waits for others while handlers run.
const linger = 2 * time.Millisecond

// gatherSettled returns first and what more of s has been handled, up to limit. While other
// deliveries are unsettled it waits a little for half of the prefetch: a call is a transaction.
func gatherSettled[T any](s *source, first T, more <-chan T, limit int) []T {
	batch := gather(first, more, limit)
	enough := min(s.prefetch/2, limit)
	if len(batch) >= enough {
		return batch
	}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for len(batch) < enough && s.unsettled() > len(batch) {
		select {
		case <-timer.C:
			return batch
		case next, ok := <-more:
			if !ok {
				return batch
			}
			batch = append(batch, gather(next, more, limit-len(batch))...)
		}
	}
	return batch
}

// acknowledge acknowledges the deliveries in acks. It returns when acks is closed.
func (s *source) acknowledge(r *running) {
	for d := range s.acks {
		batch := gatherSettled(s, d, s.acks, maxAcks)
		s.crashAt(crash.WorkerBeforeRetryAck)
		ctx, cancel := r.settling(settleTimeout)
		err := s.Ack(ctx, batch...)
		cancel()
		s.crashAt(crash.WorkerAfterRetryAck)
		switch {
		case errors.Is(err, waybill.ErrLeaseLost):
			r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "handled, but the lease was lost: it comes again", slog.String("transport", r.cfg.Transport), slog.Any("err", err))
		case err != nil:
			r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "acknowledgement failed: the messages come again", slog.String("transport", r.cfg.Transport), slog.Int("messages", len(batch)), slog.Any("err", err))
		}
		s.forget(batch...)
		r.settled <- settled{s, len(batch)}
	}
}

// crashAt is a point of the retry queue alone.
func (s *source) crashAt(point string) {
	if s.retries != nil {
		crash.At(point)
	}
}

// gather returns first and what more is in the channel, up to limit.
func gather[T any](first T, more <-chan T, limit int) []T {
	batch := []T{first}
	for len(batch) < limit {
		select {
		case next, ok := <-more:
			if !ok {
				return batch
			}
			batch = append(batch, next)
		default:
			return batch
		}
	}
	return batch
}
