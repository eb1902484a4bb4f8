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
	"github.com/waybill-go/waybill/internal/keyorder"
)

// Config tunes a Worker. The zero value is fit for production.
type Config struct {
	// Transport is the name of the transport, for handlers and logs.
	Transport string
	// Concurrency is how many handlers run at once; zero means 10. Messages with
	// one partition key run one after another.
	Concurrency int
	// Prefetch is how many unsettled messages the worker holds at most; zero means
	// 4 x Concurrency.
	Prefetch int
	// Retry is the delay after which a failed message and its key are tried again. An
	// unrecoverable failure has the longest delay.
	Retry waybill.Backoff
	// MaxRetries is how many retries a message has before its failures are logged at
	// level Error; zero means 8. It is then retried at the longest delay.
	MaxRetries int
	// Drain is how long handlers may keep running after Run's context ended; zero
	// means 25 s. Then their contexts end, with ErrDrained as the cause.
	Drain time.Duration
	// Limit is the number of messages, failed ones included, after which Run returns;
	// zero means none.
	Limit int
	// Idle is the time without a new message after which Run returns; zero means
	// never.
	Idle time.Duration
	// Log receives failures, lost leases and outages. Nil discards.
	Log *slog.Logger
	// Observer receives events for every message. Nil means none.
	Observer waybill.Observer
}

func (cfg Config) withDefaults() (Config, error) {
	for _, n := range []int{cfg.Concurrency, cfg.Prefetch, cfg.MaxRetries, cfg.Limit, int(cfg.Drain), int(cfg.Idle)} {
		if n < 0 {
			return cfg, fmt.Errorf("worker: config: %d is negative", n)
		}
	}
	if n := max(cfg.Concurrency, cfg.Prefetch); n > maxInFlight {
		return cfg, fmt.Errorf("worker: config: %d messages at once, the limit is %d", n, maxInFlight)
	}
	if err := cfg.Retry.Validate(); err != nil {
		return cfg, err
	}
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 10)
	cfg.Prefetch = max(cmp.Or(cfg.Prefetch, min(4*cfg.Concurrency, maxInFlight)), cfg.Concurrency)
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
// the drain time. The message is delivered again; no failure is counted.
var ErrDrained = errors.New("worker stopped before the handler was done")

// maxInFlight bounds Concurrency and Prefetch. AMQP's prefetch is 16 bits, too.
const maxInFlight = 65535

// abandonAfter is how long Run waits for a handler whose context has ended.
const abandonAfter = 2 * time.Second

// A Worker receives messages and runs a bus on them.
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

// Run works until ctx ends, Limit or Idle is reached, or the receiver fails with an
// error that does not wrap waybill.ErrUnavailable. Then it releases the messages that
// have not begun, lets running handlers finish within the drain time, and settles.
// It returns nil, the receiver's error, or an error if a handler ignores the end of
// its context: that handler's message is delivered again when its lease ends.
func (w *Worker) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// Handlers and settling outlive the stop signal, until draining ends.
	work, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abort(nil)
	r := &running{
		Worker: w, stop: stop, work: work, abort: abort,
		// With an equal share of the prefetch a full queue has a message for every handler.
		queue:    keyorder.NewHandleQueue(w.cfg.Prefetch / w.cfg.Concurrency),
		received: make(chan []*waybill.Delivery), room: make(chan int), done: make(chan outcome, w.cfg.Concurrency),
		acks: make(chan *waybill.Delivery, w.cfg.Prefetch+w.cfg.Concurrency), settled: make(chan int, w.cfg.Prefetch+w.cfg.Concurrency),
		cancels: map[*waybill.Delivery]context.CancelCauseFunc{}, lost: map[*waybill.Delivery]bool{},
	}
	return r.run(ctx)
}

// running is one call of Run. Its fields are only touched by run's goroutine, except
// for the channels and the fields that mu guards.
type running struct {
	*Worker
	stop  context.CancelFunc
	work  context.Context
	abort context.CancelCauseFunc
	queue *keyorder.HandleQueue

	received chan []*waybill.Delivery
	room     chan int // how many messages to receive
	done     chan outcome
	acks     chan *waybill.Delivery
	settled  chan int // how many messages were acknowledged

	busy    int
	handled int

	mu      sync.Mutex                                    // guards the fields below
	cancels map[*waybill.Delivery]context.CancelCauseFunc // by unsettled delivery; nil until its handlers run
	lost    map[*waybill.Delivery]bool                    // unsettled deliveries with a lost lease
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
	if lease := r.from.LeaseTime(); lease > 0 {
		loops.Go(func() { r.renew(lease) })
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
		// Room is offered when it is worth a call: half of the prefetch, or any room
		// while a handler slot is free.
		free := r.cfg.Prefetch - r.queue.Count()
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
			r.queue.Settled(n)
		case err := <-receiving:
			receiving, failure = nil, err
			r.stop()
		case <-stopping:
			stopping = nil
			r.release(r.queue.Rest())
			drained = time.After(r.cfg.Drain)
		case <-drained:
			r.abort(ErrDrained)
			abandoned = time.After(abandonAfter)
		case <-abandoned:
			// Messages that receive still returns are released before Run returns.
			if gaveUp = true; r.busy > 0 {
				failure = errors.Join(failure, fmt.Errorf("worker: %d handlers ignore the end of their context after %v: their messages come again", r.busy, r.cfg.Drain))
			}
		}
	}
}

// start runs handlers for ready messages, up to Concurrency and Limit.
func (r *running) start() {
	for r.busy < r.cfg.Concurrency && (r.cfg.Limit == 0 || r.handled+r.busy < r.cfg.Limit) {
		d := r.queue.Take()
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
		if !r.queue.Add(d) {
			over = append(over, d)
		}
	}
	if stopping {
		over = append(r.queue.Rest(), over...)
	}
	r.release(over)
}
