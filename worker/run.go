package worker

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/outage"
)

// running is a part of a call of Run, up to a pause or its end. Its fields are only touched by
// run's goroutine, except for the channels, stored, gaveUp and the sources.
type running struct {
	*Worker
	intake  context.Context    // ends when the worker is to stop, or its transport is paused
	stop    context.CancelFunc // of the whole call of Run
	work    context.Context
	abort   context.CancelCauseFunc
	main    *source   // the transport
	retries *source   // the store's retry queue, or nil
	sources []*source // both
	share   *slotShare

	loops sync.WaitGroup // end with work

	received chan batch
	ready    chan func() // calls of handle
	done     chan outcome
	settled  chan settled
	moves    chan move // to be stored, in order
	moved    chan move // the same ones, later

	busy     int
	most     int // busy at once so far: goroutines of handleReady
	handled  int // of the whole call of Run
	worked   int // attempts that met no outage
	away     int // attempts in a row that met one
	stopping bool
	turn     int // the source that is asked first for the next delivery

	suspects []*waybill.Delivery // redelivered ones of the retry queue: of these one runs at a time
	suspect  *waybill.Delivery   // the last that has begun
	lastMove int64               // number of the last move
	stored   atomic.Int64        // number of the last move that is stored
	waiting  map[string]int64    // by key: number of its last move, until a batch was checked after it was stored
	closing  chan struct{}       // closed when coordinate has returned
	gaveUp   error               // of store: why it stores no more
	active   *activeMessages
	starved  sync.Map // names of handlers that gather in vain, see gathers

	outage      *outage.Log // of the transport or the store
	unavailable *outage.Log // of what handlers need

	pause  time.Duration    // after the next outcome that finds a database or broker unavailable
	paused <-chan time.Time // no handler begins before
	trial  <-chan time.Time // after a pause: no other handler begins before, or before one ends

	partialUntil time.Time // end of an outage that only some messages meet, unless another is postponed
}

// A batch is one result of Receive.
type batch struct {
	from *source
	ds   []*waybill.Delivery
	// contained says which of ds the retry queue contained, by id or key, at a time
	// when the moves up to stored were in it; unchecked that the worker stopped first.
	contained []bool
	stored    int64
	unchecked bool
}

// settled is how many deliveries of a source were acknowledged.
type settled struct {
	from *source
	n    int
}

type outcome struct {
	from  *source
	d     *waybill.Delivery
	err   error
	cause error // why the handler's context had ended when it failed, or nil
}

// run works until intake ends. The drain time begins with the end of ctx.
func (r *running) run(ctx context.Context) error {
	var acks sync.WaitGroup
	receiving := make(chan error, len(r.sources))
	for _, s := range r.sources {
		r.loops.Go(func() { receiving <- r.receive(r.intake, s) })
		acks.Go(func() { s.acknowledge(r) })
		if s.LeaseTime() > 0 {
			r.loops.Go(func() { s.renew(r) })
		}
	}
	acks.Go(r.store)
	if r.cfg.Inbox != nil {
		r.checkConns(ctx)
		r.loops.Go(func() { r.prune(r.intake) })
	}
	r.loops.Go(func() { r.watch(r.work) })
	err := r.coordinate(ctx, receiving)
	for _, s := range r.sources {
		close(s.acks)
	}
	close(r.ready)
	close(r.moves)
	close(r.closing)
	acks.Wait() // the rest is settled, then renew ends with work
	close(r.moved)
	for m := range r.moved {
		r.finishMove(m)
	}
	r.abort(ErrDrained)
	r.loops.Wait()
	return err
}

// coordinate is the worker's one decision maker.
func (r *running) coordinate(ctx context.Context, receiving <-chan error) error {
	var failure error
	var drained, abandoned <-chan time.Time
	overdue, open := false, len(r.sources)
	stopping, ending := r.intake.Done(), ctx.Done()
	for {
		if !r.stopping && r.intake.Err() != nil {
			r.stopping = true
			r.releaseRest()
		}
		if !r.stopping {
			r.start()
		} else if open == 0 && r.busy == 0 {
			return failure
		} else if open == 0 && overdue && len(r.done) == 0 {
			return errors.Join(failure, r.ignoring())
		}
		select {
		case <-r.pings: // before more calls that wait for a database
		default:
		}
		mainRoom, mainFree := r.main.offer(r.stopping)
		retryRoom, retryFree := r.retries.offer(r.stopping)
		select {
		case mainRoom <- mainFree:
		case retryRoom <- retryFree:
		case b := <-r.received:
			r.takeIn(b)
		case o := <-r.done:
			r.ended(o)
		case <-r.pings:
		case n := <-r.settled:
			n.from.queue.Settled(n.n)
			n.from.acking -= n.n
		case m := <-r.moved:
			r.finishMove(m)
		case <-r.paused:
			r.paused = nil
		case <-r.trial:
			r.trial = nil
		case err := <-receiving:
			open--
			failure = errors.Join(failure, err)
			if err != nil || r.intake.Err() == nil {
				r.stop()
			}
		case <-stopping:
			stopping = nil
		case <-ending:
			ending, drained = nil, time.After(r.cfg.Drain)
		case <-drained:
			r.abort(ErrDrained)
			abandoned = time.After(abandonAfter)
		case <-abandoned: // outcomes that are there, and what receive still returns, are settled first
			overdue = true
		}
	}
}

// ended takes note that the handlers of a message have returned.
func (r *running) ended(o outcome) {
	r.busy--
	o.from.busy--
	r.trial = nil
	r.finish(o)
	if o.err != nil && !Failed(o.err) {
		return
	}
	if r.handled++; r.handled == r.cfg.Limit {
		r.stop()
	}
}

// offer returns the channel that lets s receive, and for how many messages, when that
// is worth a call: half of the prefetch, or any room while it has a free slot and no
// acknowledgement is about to make more. Else the channel is nil.
func (s *source) offer(stopping bool) (chan<- int, int) {
	if s == nil || stopping {
		return nil, 0
	}
	free := s.prefetch - s.queue.Count()
	if free <= 0 || 2*free < s.prefetch && (s.busy >= s.slots+s.ahead || s.acking > 0) {
		return nil, 0
	}
	return s.room, free
}

// releaseRest gives back all that has not begun.
func (r *running) releaseRest() {
	for _, s := range r.sources {
		rest := s.queue.Rest()
		if s == r.retries {
			rest = append(rest, r.suspects...)
			r.suspects = nil
		}
		s.release(r, rest)
	}
}

func (r *running) takeIn(b batch) {
	s := b.from
	if len(b.ds) > 0 && b.ds[0].Lost != nil && b.ds[0].Lost != s.watched {
		s.watched = b.ds[0].Lost
		r.loops.Go(func() { s.watch(r.work, b.ds[0].Lost) })
	}
	if s == r.main { // moves up to b.stored were visible to the check: b.contained covers their keys
		maps.DeleteFunc(r.waiting, func(_ string, last int64) bool { return last <= b.stored })
	}
	var back []*waybill.Delivery
	for i, d := range b.ds {
		switch {
		case b.unchecked || r.stopping:
			s.queue.Hold()
			back = append(back, d)
		case s == r.main && r.retries != nil && r.belongs(b, i):
			s.queue.Hold()
			r.move(move{from: s, Move: Move{Delivery: d}})
		case !s.queue.Add(d):
			back = append(back, d)
		}
	}
	s.release(r, back)
}

// next returns the delivery that runs next and its source, or nil. The sources take
// turns.
func (r *running) next() (*source, *waybill.Delivery) {
	for range r.sources {
		s := r.sources[r.turn%len(r.sources)]
		r.turn++
		if s.busy >= s.slots+s.ahead {
			continue
		}
		for d := r.take(s); d != nil; d = r.take(s) {
			if s != r.retries || !d.Redelivered {
				return s, d
			}
			if !r.suspecting() {
				r.suspect = d
				return s, d
			}
			r.suspects = append(r.suspects, d)
		}
	}
	return nil, nil
}

// suspecting reports whether a suspect is unsettled: if the next one ended the process now,
// it would count against both.
func (r *running) suspecting() bool { return r.suspect != nil && r.retries.holds(r.suspect) }

func (r *running) take(s *source) *waybill.Delivery {
	if s == r.retries && !r.suspecting() && len(r.suspects) > 0 {
		d := r.suspects[0]
		r.suspects = r.suspects[1:]
		return d
	}
	return s.queue.Take()
}

// start runs handlers for ready messages, up to Concurrency and Limit, and has more wait for
// Slots. After a pause it begins one, until it has succeeded or failed otherwise; while that takes
// long, another one each maxPause: a handler that hangs holds up no others.
func (r *running) start() {
	for r.paused == nil && r.trial == nil && r.busy < r.cfg.Concurrency+r.main.ahead && (r.cfg.Limit == 0 || r.handled+r.busy < r.cfg.Limit) {
		s, d := r.next()
		if d == nil {
			return
		}
		ctx, cancel := context.WithCancelCause(r.work)
		if !s.begin(d, cancel) {
			cancel(nil)
			r.finish(outcome{s, d, waybill.ErrLeaseLost, waybill.ErrLeaseLost})
			continue
		}
		if r.pause > 0 {
			r.trial = time.After(maxPause)
		}
		r.busy++
		s.busy++
		r.ready <- func() { r.handle(ctx, cancel, s, d) }
		if r.busy > r.most {
			r.most++
			go r.handleReady() // coordinate waits for it through busy and done
		}
	}
}
