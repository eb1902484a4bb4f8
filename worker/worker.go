package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/outage"
)

// Config tunes a Worker. The zero value is fit for production.
type Config struct {
	// Transport is the name of the transport, for handlers and logs, and in the Store.
	Transport string
	// Concurrency is how many handlers run at once; zero means 10. Messages with
	// one partition key run one after another. A handler that gathers more messages (see
	// inbox.Group and waybill.HandleBatch) is warned of when it has its first.
	Concurrency int
	// Slots are shared with other workers of the process. Each handler needs one, and up to as
	// many messages as there are slots wait for one, besides the handled ones. Nil means none.
	Slots *Slots
	// Priority decides about the next free one of Slots: the highest has it, before all others.
	Priority int
	// Weight is the share that this worker has in Slots, compared with others of the same
	// Priority: with 3 it begins three messages for each one of a worker with 1, while both
	// have messages. Zero means 1.
	Weight int
	// Prefetch is how many unsettled messages the worker holds at most, and how many of
	// the retry queue of Store, but no fewer than Concurrency; zero means 4 x Concurrency.
	Prefetch int
	// Retry is the delay after which a failed message and its key are tried again.
	Retry waybill.Backoff
	// MaxRetries is how many retries a message has; zero means 8, negative none.
	MaxRetries int
	// Store keeps messages that failed, until they are retried, and the dead letters.
	// Nil means that a failed message waits at its transport: it is retried for ever,
	// after MaxRetries or an unrecoverable failure at the longest delay, and its
	// failures are counted as durably as the transport does. A broker does not.
	Store Store
	// Inbox is the database of the handlers' inbox. The worker removes its expired entries,
	// a small batch at a time about once a minute, and warns of too few connections. Nil
	// means that neither is done: then something else has to prune.
	Inbox Inbox
	// FailureTransport is the name under which dead letters are kept; empty means
	// "failed".
	FailureTransport string
	// OnExhausted decides about a message without retries left, or with an
	// unrecoverable failure; empty means Park for one with a key and Skip for one
	// without, which is always skipped.
	OnExhausted Policy
	// MaxCrashes is how often handling a message may end with its process before it
	// becomes a dead letter; zero means 5. The first two times are not counted: the
	// process may have had many messages. It wants a Store.
	MaxCrashes int
	// Drain is how long handlers may keep running after Run's context ended; zero
	// means 25 s. Then their contexts end, with ErrDrained as the cause.
	Drain time.Duration
	// SlowHandler is how long the handlers of a message may run before a warning names them,
	// once for each message; zero means a minute.
	SlowHandler time.Duration
	// Limit is the number of messages, failed ones included, after which Run returns;
	// zero means none.
	Limit int
	// Idle is the time without a new message after which Run returns; zero means
	// never. Messages that wait for a retry in the Store do not count.
	Idle time.Duration
	// Process reports this worker, with the others of the process, for operators, who may
	// stop the process and pause the transport. Its context is to be that of Run. Nil means
	// that the worker is neither reported nor paused.
	Process *Process
	// Log receives failures, lost leases and outages. Nil discards.
	Log *slog.Logger
	// Observer receives events for every message, those of handlers included (see
	// waybill.Report). Nil means none.
	Observer waybill.Observer
}

// A Policy decides about a key whose first message has no retries left.
type Policy string

const (
	// Block retries it at the longest delay.
	Block Policy = "block"
	// Park keeps it, and the later messages of its key, in the store until an operator
	// releases the key.
	Park Policy = "park"
	// Skip moves it to the dead letters, and frees its key.
	Skip Policy = "skip"
)

func (cfg Config) withDefaults() (Config, error) {
	for _, n := range []struct {
		field string
		value int64
	}{
		{"Concurrency", int64(cfg.Concurrency)}, {"Prefetch", int64(cfg.Prefetch)}, {"Limit", int64(cfg.Limit)},
		{"MaxCrashes", int64(cfg.MaxCrashes)}, {"Drain", int64(cfg.Drain)}, {"Idle", int64(cfg.Idle)}, {"Weight", int64(cfg.Weight)}, {"SlowHandler", int64(cfg.SlowHandler)},
	} {
		if n.value < 0 {
			return cfg, fmt.Errorf("worker: config: %s is negative (%d): leave it zero for the default", n.field, n.value)
		}
	}
	switch {
	case cfg.Slots == nil && (cfg.Priority != 0 || cfg.Weight != 0):
		return cfg, errors.New("worker: config: Priority and Weight decide nothing without Slots, which workers share")
	case cfg.Slots != nil && cfg.Slots.n == 0:
		return cfg, errors.New("worker: config: Slots has none, so no handler would run: make it by NewSlots")
	}
	switch cfg.OnExhausted {
	case "", Block, Park, Skip:
	default:
		return cfg, fmt.Errorf("worker: config: OnExhausted is %q: want %s, %s or %s", cfg.OnExhausted, Block, Park, Skip)
	}
	if n := max(cfg.Concurrency, cfg.Prefetch); n > maxInFlight {
		return cfg, fmt.Errorf("worker: config: %d messages at once, the limit is %d", n, maxInFlight)
	}
	if err := cfg.Retry.Validate(); err != nil {
		return cfg, err
	}
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 10)
	cfg.Weight = cmp.Or(cfg.Weight, 1)
	cfg.Prefetch = max(cmp.Or(cfg.Prefetch, min(4*cfg.Concurrency, maxInFlight)), cfg.Concurrency)
	cfg.MaxRetries = max(cmp.Or(cfg.MaxRetries, 8), 0)
	cfg.MaxCrashes = cmp.Or(cfg.MaxCrashes, 5)
	cfg.FailureTransport = cmp.Or(cfg.FailureTransport, "failed")
	cfg.Drain = cmp.Or(cfg.Drain, 25*time.Second)
	cfg.SlowHandler = cmp.Or(cfg.SlowHandler, time.Minute)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
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

	observer waybill.Observers // contains panics of Config.Observer
	runs     atomic.Int32      // that have begun, see running
	pings    chan struct{}     // taken by coordinate
}

// New returns a worker that takes messages from a receiver and gives them to bus.
func New(bus *waybill.Bus, from waybill.Receiver, cfg Config) (*Worker, error) {
	switch {
	case bus == nil || from == nil:
		return nil, errors.New("worker: New needs a bus and a receiver")
	case !bus.HasHandlers():
		return nil, fmt.Errorf("worker: bus %s has no handlers, so every message would fail: register them with waybill.Handle or inbox.Handle before worker.New", bus.Name())
	case cfg.Store != nil && cfg.Transport == "":
		return nil, errors.New("worker: config: a Store needs the name of the Transport, under which failed messages are kept")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Worker{bus: bus, from: from, cfg: cfg, observer: waybill.Observers{cfg.Observer}, pings: make(chan struct{})}, nil
}

// Run works until ctx ends, Limit or Idle is reached, or the receiver fails with an
// error that does not wrap waybill.ErrUnavailable. Then it releases the messages that
// have not begun, lets running handlers finish within the drain time, and settles.
// It returns nil, the receiver's error, or an error if a handler ignores the end of
// its context: that handler's message is delivered again when its lease ends.
//
// While an operator has its transport paused (see Process), it works as far as a stop does,
// for as long as running handlers take, and begins again when the transport is resumed.
func (w *Worker) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var retries RetryQueue
	if w.cfg.Store != nil {
		var err error
		if retries, err = w.cfg.Store.RetryQueue(w.cfg.Transport); err != nil {
			return fmt.Errorf("worker: retry queue: %w", err)
		}
	} else {
		w.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "worker without a store: a failed message waits at its transport, and has no end", slog.String("transport", w.cfg.Transport))
	}
	active := &activeMessages{}
	forget, err := w.cfg.Process.add(w, active)
	if err != nil {
		return err
	}
	defer forget()
	for handled := 0; w.awaitResume(ctx); {
		r := w.begin(retries)
		r.stop, r.active, r.handled = stop, active, handled
		err := r.untilPaused(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		handled = r.handled
	}
	return nil
}

// begin returns the state of one run from a start or a resume to a pause or the end.
func (w *Worker) begin(retries RetryQueue) *running {
	c := w.cfg.Concurrency
	r := &running{
		Worker:   w,
		main:     newSource(w.from, nil, w.cfg.Prefetch, c),
		share:    &slotShare{priority: w.cfg.Priority, weight: w.cfg.Weight, most: c},
		received: make(chan batch), ready: make(chan func(), c+w.cfg.Slots.ahead()), done: make(chan outcome, c+w.cfg.Slots.ahead()), waiting: map[string]int64{}, closing: make(chan struct{}),
	}
	transport := slog.String("transport", w.cfg.Transport)
	r.outage = outage.New(w.cfg.Log, slog.String("what", "queue"), transport)
	r.unavailable = outage.New(w.cfg.Log, slog.String("what", "handlers"), transport)
	r.main.ahead = w.cfg.Slots.ahead()
	r.sources = []*source{r.main}
	if retries != nil {
		r.retries = newSource(retries, retries, w.cfg.Prefetch, (c+1)/2)
		r.sources = append(r.sources, r.retries)
	}
	inFlight := 0
	for _, s := range r.sources {
		inFlight += cap(s.acks)
	}
	r.settled, r.moves, r.moved = make(chan settled, inFlight), make(chan move, inFlight), make(chan move, inFlight)
	return r
}

// untilPaused works until ctx or the worker ends, or its transport is paused.
func (r *running) untilPaused(ctx context.Context) error {
	var pause context.CancelFunc
	r.intake, pause = context.WithCancel(ctx)
	defer pause()
	// Handlers and settling outlive the stop signal, until draining ends.
	r.work, r.abort = context.WithCancelCause(context.WithoutCancel(ctx))
	defer r.abort(nil)
	r.loops.Go(func() {
		if r.cfg.Process.awaitPause(r.intake, r.cfg.Transport) {
			pause()
		}
	})
	r.runs.Add(1)
	defer r.runs.Add(-1)
	return r.run(ctx)
}
