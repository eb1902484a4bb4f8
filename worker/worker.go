package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/hand"
	"github.com/waybill-go/waybill/internal/mutant"
)

// Config tunes a Worker. The zero value is fit for production.
type Config struct {
	// Transport is the name of what is received from, for handlers and logs.
	Transport string
	// Concurrency is how many handlers run at once; zero means 10. Messages with
	// one partition key run one after another.
	Concurrency int
	// Prefetch is how many messages may be in hand; zero means 4 x Concurrency.
	Prefetch int
	// Retry says how long a failed message and its key wait. What cannot be
	// mended by a retry waits the longest.
	Retry waybill.Backoff
	// MaxRetries is how many failures turn a message into an alert; zero means 8.
	// It goes on being tried at the longest delay.
	MaxRetries int
	// Drain is how long handlers may go on after Run's context ended; zero means
	// 25 s. Then their contexts end, with ErrDrained as the cause.
	Drain time.Duration
	// Limit makes Run return after so many messages were handled; zero means none.
	Limit int
	// Idle makes Run return when nothing arrived for so long; zero means never.
	Idle time.Duration
	// Log receives what the worker decides. Nil discards.
	Log *slog.Logger
	// Observer hears of every message. Nil means nobody.
	Observer waybill.Observer
}

func (cfg Config) withDefaults() (Config, error) {
	for _, n := range []int{cfg.Concurrency, cfg.Prefetch, cfg.MaxRetries, cfg.Limit, int(cfg.Drain), int(cfg.Idle)} {
		if n < 0 {
			return cfg, fmt.Errorf("worker: config: %d is negative", n)
		}
	}
	if n := max(cfg.Concurrency, cfg.Prefetch); n > maxInHand {
		return cfg, fmt.Errorf("worker: config: %d messages at once, the limit is %d", n, maxInHand)
	}
	if err := cfg.Retry.Validate(); err != nil {
		return cfg, err
	}
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 10)
	cfg.Prefetch = max(cmp.Or(cfg.Prefetch, min(4*cfg.Concurrency, maxInHand)), cfg.Concurrency)
	cfg.MaxRetries = cmp.Or(cfg.MaxRetries, 8)
	cfg.Drain = cmp.Or(cfg.Drain, 25*time.Second)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Observer == nil {
		cfg.Observer = waybill.Observers{}
	}
	return cfg, nil
}

// ErrDrained is the cause with which a handler's context ends when it outlives
// the drain time. The message comes again; no failure is counted.
var ErrDrained = errors.New("worker stopped before the handler was done")

// maxInHand bounds Concurrency and Prefetch. AMQP's prefetch is 16 bits, too.
const maxInHand = 65535

// abandonAfter is how long Run waits for a handler whose context has ended.
const abandonAfter = 2 * time.Second

// A Worker runs a bus on what it receives.
type Worker struct {
	bus  *waybill.Bus
	from waybill.Receiver
	cfg  Config
}

// New returns a worker that takes messages from a receiver and gives them to bus.
func New(bus *waybill.Bus, from waybill.Receiver, cfg Config) (*Worker, error) {
	if bus == nil || from == nil {
		return nil, errors.New("worker: New needs a bus and a receiver")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Worker{bus, from, cfg}, nil
}

// Run works until ctx ends, a limit is reached or the receiver fails for good.
// Then it gives back what has not begun, lets running handlers finish within
// the drain time, settles, and returns nil. It rides out a transport that
// cannot be reached. It returns an error when a handler ignores the end of its
// context: that handler's message comes again when its lease ends.
func (w *Worker) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// Handlers and settling outlive the stop signal, until draining ends.
	work, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abort(nil)
	r := &running{
		Worker: w, stop: stop, work: work, abort: abort,
		// With an equal share of the prefetch a full hand has work for every handler.
		hand:     hand.New(w.cfg.Prefetch / w.cfg.Concurrency),
		received: make(chan []*waybill.Delivery), room: make(chan int), done: make(chan outcome, w.cfg.Concurrency),
		acks: make(chan *waybill.Delivery, w.cfg.Prefetch+w.cfg.Concurrency), settled: make(chan int, w.cfg.Prefetch+w.cfg.Concurrency),
		cancels: map[*waybill.Delivery]context.CancelCauseFunc{}, lost: map[*waybill.Delivery]bool{},
	}
	return r.run(ctx)
}

// running is one Run. Its fields are only touched by run's goroutine, except
// for the channels and what mu guards.
type running struct {
	*Worker
	stop  context.CancelFunc
	work  context.Context
	abort context.CancelCauseFunc
	hand  *hand.Hand

	received chan []*waybill.Delivery
	room     chan int // how many more may be received
	done     chan outcome
	acks     chan *waybill.Delivery
	settled  chan int // how many were acknowledged

	busy    int
	handled int

	mu      sync.Mutex
	cancels map[*waybill.Delivery]context.CancelCauseFunc // of all that is in hand; nil until it runs
	lost    map[*waybill.Delivery]bool                    // in hand, with a lease that is lost
}

type outcome struct {
	d     *waybill.Delivery
	err   error
	cause error // why the handler's context had ended when it failed, or nil
}

func (r *running) run(ctx context.Context) error {
	var loops sync.WaitGroup
	receiving := make(chan error, 1)
	loops.Go(func() { receiving <- r.receive(ctx) })
	loops.Go(r.acknowledge)
	if leaser, ok := r.from.(waybill.Leaser); ok {
		loops.Go(func() { r.renew(leaser) })
	}
	err := r.coordinate(ctx, receiving)
	close(r.acks) // the rest is acknowledged, then renew ends with work
	for range r.settled {
	}
	r.abort(ErrDrained)
	loops.Wait()
	return err
}

// coordinate is the worker's one decision maker.
func (r *running) coordinate(ctx context.Context, receiving <-chan error) error {
	var failure error
	var drained, abandoned <-chan time.Time
	gaveUp := false
	stopping := ctx.Done()
	for {
		if stopping != nil {
			r.start()
		} else if (r.busy == 0 || gaveUp) && receiving == nil {
			return failure
		}
		// Room is offered when it is worth a call: half of the prefetch, or
		// anything when a handler would have nothing to do.
		free := r.cfg.Prefetch - r.hand.Count()
		var room chan<- int // nil, and so never chosen, when there is none
		if stopping != nil && free > 0 && (2*free >= r.cfg.Prefetch || r.busy < r.cfg.Concurrency) {
			room = r.room
		}
		select {
		case room <- free:
		case ds := <-r.received:
			r.takeIn(ds, stopping == nil)
		case o := <-r.done:
			r.busy--
			r.finish(o)
			if r.handled++; r.handled == r.cfg.Limit {
				r.stop()
			}
		case n := <-r.settled:
			r.hand.Settled(n)
		case err := <-receiving:
			receiving, failure = nil, err
			r.stop()
		case <-stopping:
			stopping = nil
			r.release(r.hand.Rest())
			drained = time.After(r.cfg.Drain)
		case <-drained:
			r.abort(ErrDrained)
			abandoned = time.After(abandonAfter)
		case <-abandoned:
			// What receive may still bring goes back before Run returns.
			if gaveUp = true; r.busy > 0 {
				failure = errors.Join(failure, fmt.Errorf("worker: %d handlers ignore the end of their context after %v: their messages come again", r.busy, r.cfg.Drain))
			}
		}
	}
}

// start runs what may run.
func (r *running) start() {
	for r.busy < r.cfg.Concurrency && (r.cfg.Limit == 0 || r.handled+r.busy < r.cfg.Limit) {
		d := r.hand.Take()
		if d == nil {
			return
		}
		ctx, cancel := context.WithCancelCause(r.work)
		r.mu.Lock()
		lost := r.lost[d]
		r.cancels[d] = cancel
		r.mu.Unlock()
		if lost {
			cancel(nil)
			r.finish(outcome{d, waybill.ErrLeaseLost, waybill.ErrLeaseLost})
			continue
		}
		r.busy++
		go func() { // run's coordinate waits for it through busy and done
			if mutant.Active(mutant.AckBeforeCommit) {
				_ = r.from.Ack(ctx, d)
			}
			start := time.Now()
			err := r.bus.HandleRecord(ctx, d.Record, r.cfg.Transport, d.Failures)
			var cause error
			if err != nil {
				if cause = context.Cause(ctx); cause != nil {
					err = fmt.Errorf("%w: %w", cause, err)
				}
			}
			cancel(nil)
			r.cfg.Observer.Observe(r.work, r.event(waybill.Handled, d, time.Since(start), err))
			r.done <- outcome{d, err, cause}
		}()
	}
}

func (r *running) event(kind waybill.EventKind, d *waybill.Delivery, took time.Duration, err error) waybill.Event {
	return waybill.Event{Kind: kind, ID: d.Record.ID, Name: d.Record.Name, Key: d.Record.Key, Transport: r.cfg.Transport, Failures: d.Failures, Duration: took, Err: err}
}

func (r *running) takeIn(ds []*waybill.Delivery, stopping bool) {
	r.mu.Lock()
	for _, d := range ds {
		r.cancels[d] = nil
	}
	r.mu.Unlock()
	var over []*waybill.Delivery
	for _, d := range ds {
		if !r.hand.Add(d) {
			over = append(over, d)
		}
	}
	if stopping {
		over = append(r.hand.Rest(), over...)
	}
	r.release(over)
}
