package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

// A queueBackend is a backend with a queue in a table, by waybill and by hand.
type queueBackend interface {
	backend
	// queue opens the queue of waybill in waybill_queue.
	queue() (queueTransport, error)
	retries() worker.Store
	// fillQueue loads messages into waybill_queue or jobs; without keys they have none.
	fillQueue(ctx context.Context, into table, n, keys int) error
	clearQueues(ctx context.Context) error
	// enqueue inserts one message into jobs, in a transaction of its own.
	enqueue(ctx context.Context, m sold) error
	// claimJobs leases the oldest free rows of jobs, up to n. finishJobs deletes them.
	claimJobs(ctx context.Context, n int) ([]jobRow, error)
	finishJobs(ctx context.Context, ids []int64) error
}

// A queueTransport is both ends of a queue.
type queueTransport interface {
	waybill.Sender
	waybill.Receiver
}

// A jobRow is a leased row of jobs.
type jobRow struct {
	id   int64
	name string
	body []byte
}

// jobs is the queue of a claim-batch loop by hand. It has waybill's columns of a message,
// a lease and a count of attempts.
const (
	jobs       table = "jobs"
	queueTable table = "waybill_queue"
)

// A queueCase is messages on their way through a queue.
type queueCase struct {
	name       string
	keyed      bool
	dispatched bool // while they are handled; otherwise loaded before
}

var queueCases = []queueCase{
	{name: "dispatch", dispatched: true},
	{name: "dispatch-keyed", dispatched: true, keyed: true},
	{name: "handle"},
	{name: "handle-keyed", keyed: true},
}

const (
	dispatchers = 8
	byHandLoops = 2
	byHandPause = 5 * time.Millisecond
)

// handlersAtOnce are the numbers of handlers of a worker: its default, and more.
var handlersAtOnce = []int{10, 50}

// Queue measures a worker on a queue in a table against a loop by hand that claims a batch,
// handles it and deletes it; and a retry against a first handling. Each message's handling
// is counted.
func Queue(ctx context.Context, opt Options) (_ []Result, err error) {
	at, err := newBackend(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, at.close()) }()
	workers := handlersAtOnce
	if opt.Workers > 0 {
		workers = []int{opt.Workers}
	}
	var results []Result
	for _, c := range queueCases {
		for _, n := range workers {
			if !opt.Wants(c.name) {
				continue
			}
			q := queueing{c, at.(queueBackend), n, opt}
			res, err := race(ctx, opt, q.result(c.name), q.waybill, q.byHand)
			if err != nil {
				return nil, err
			}
			if c.dispatched {
				res.Target = 0.85
			}
			results = append(results, res)
		}
	}
	if opt.Wants("retry") {
		for _, n := range workers {
			res, err := queueing{queueCase{}, at.(queueBackend), n, opt}.measureRetry(ctx)
			if err != nil {
				return nil, err
			}
			results = append(results, res)
		}
	}
	return results, nil
}

// queueing is one case on both sides.
type queueing struct {
	queueCase
	queueBackend
	workers int
	opt     Options
}

func (q queueing) result(name string) Result {
	res := Result{Case: "queue, " + name, Database: q.database(), Workers: q.workers, Rows: q.opt.Rows}
	if q.keyed {
		res.Keys, res.Ordering = q.opt.Keys, "strict"
	}
	return res
}

func (q queueing) keys() int {
	if q.keyed {
		return q.opt.Keys
	}
	return 0
}

// prepare empties both queues, and fills one if its messages are not dispatched meanwhile.
func (q queueing) prepare(ctx context.Context, into table) error {
	if err := q.clearQueues(ctx); err != nil || q.dispatched {
		return err
	}
	return errors.Join(q.fillQueue(ctx, into, q.opt.Rows, q.keys()), q.tidy(ctx, into))
}

// waybill dispatches and handles all messages.
func (q queueing) waybill(ctx context.Context) (int, time.Duration, error) {
	return q.worker(ctx, worker.Config{}, q.opt.Rows, func(*handlings, sold) error { return nil })
}

// worker runs a worker until so many messages were handled, failures included.
func (q queueing) worker(ctx context.Context, cfg worker.Config, limit int, handle func(*handlings, sold) error) (int, time.Duration, error) {
	if err := q.prepare(ctx, queueTable); err != nil {
		return 0, 0, err
	}
	at, err := q.queue()
	if err != nil {
		return 0, 0, err
	}
	done := newHandlings(q.opt.Rows)
	bus := waybill.NewBus("bench")
	waybill.Handle(bus, "bench", func(_ context.Context, m sold) error {
		if err := handle(done, m); err != nil {
			return err
		}
		return done.add(m)
	})
	bus.AddSender("queue", at)
	bus.Route("*", "queue")
	cfg.Transport, cfg.Concurrency, cfg.Limit = "queue", q.workers, limit
	w, err := worker.New(bus, at, cfg)
	if err != nil {
		return 0, 0, err
	}
	return q.timed(ctx, done, func(ctx context.Context, m sold) error {
		_, err := bus.Dispatch(ctx, m)
		return err
	}, w.Run)
}

// byHand does the same by loops that have as many messages in flight as the worker.
func (q queueing) byHand(ctx context.Context) (int, time.Duration, error) {
	if err := q.prepare(ctx, jobs); err != nil {
		return 0, 0, err
	}
	done := newHandlings(q.opt.Rows)
	return q.timed(ctx, done, q.enqueue, func(ctx context.Context) error {
		var wg sync.WaitGroup
		errs := make([]error, byHandLoops)
		for i := range errs {
			wg.Go(func() { errs[i] = q.loop(ctx, done, max(1, 4*q.workers/byHandLoops)) })
		}
		wg.Wait()
		return errors.Join(errs...)
	})
}

// loop claims, handles and deletes batches until all messages are handled.
func (q queueing) loop(ctx context.Context, done *handlings, batch int) error {
	for done.left() {
		rows, err := q.claimJobs(ctx, batch)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			time.Sleep(byHandPause)
			continue
		}
		ids := make([]int64, len(rows))
		for i, r := range rows {
			var m sold
			if err := errors.Join(json.Unmarshal(r.body, &m), done.add(m)); err != nil {
				return err
			}
			ids[i] = r.id
		}
		if err := q.finishJobs(ctx, ids); err != nil {
			return err
		}
	}
	return nil
}

// timed runs one side: handlers, and dispatchers beside them if the messages are not there.
func (q queueing) timed(ctx context.Context, done *handlings, dispatch func(context.Context, sold) error, handle func(context.Context) error) (int, time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	stop := q.opt.clock()
	if q.dispatched {
		for first := range dispatchers {
			wg.Go(func() {
				for i := first; i < q.opt.Rows && ctx.Err() == nil; i += dispatchers {
					m := sold{"", i, note}
					if q.keyed {
						m.Customer = keyOf(i, q.opt.Keys)
					}
					if err := dispatch(ctx, m); err != nil {
						cancel(err)
					}
				}
			})
		}
	}
	err := handle(ctx)
	took := stop()
	wg.Wait()
	if err := errors.Join(err, context.Cause(ctx)); err != nil {
		return 0, 0, err
	}
	return q.opt.Rows, took, done.complete()
}

// handlings counts how often each message was handled.
type handlings struct {
	of  []atomic.Int32 // by number
	all atomic.Int64
}

func newHandlings(n int) *handlings { return &handlings{of: make([]atomic.Int32, n)} }

func (h *handlings) left() bool { return h.all.Load() < int64(len(h.of)) }

func (h *handlings) add(m sold) error {
	if m.Cents < 0 || m.Cents >= len(h.of) {
		return fmt.Errorf("message %d was never sent", m.Cents)
	}
	h.of[m.Cents].Add(1)
	h.all.Add(1)
	return nil
}

// complete is an error unless each message was handled once.
func (h *handlings) complete() error {
	for i := range h.of {
		if n := h.of[i].Load(); n != 1 {
			return fmt.Errorf("message %d was handled %d times, want once", i, n)
		}
	}
	return nil
}

var errFirstAttempt = errors.New("the first attempt fails")

// measureRetry compares messages that fail once, and are handled from the retry queue, with
// messages that are handled at once, by workers with a store. The ratio is the time that
// the retries take through that of the first handlings: less is better.
func (q queueing) measureRetry(ctx context.Context) (Result, error) {
	retry := waybill.Backoff{Delay: time.Millisecond}
	res, err := race(ctx, q.opt, q.result("retry"), func(ctx context.Context) (int, time.Duration, error) {
		failed := newHandlings(q.opt.Rows)
		return q.worker(ctx, worker.Config{Store: q.retries(), Retry: retry}, 2*q.opt.Rows, func(_ *handlings, m sold) error {
			if failed.of[m.Cents].Add(1) == 1 {
				return errFirstAttempt
			}
			return nil
		})
	}, func(ctx context.Context) (int, time.Duration, error) {
		return q.worker(ctx, worker.Config{Store: q.retries(), Retry: retry}, q.opt.Rows, func(*handlings, sold) error { return nil })
	})
	more := func(rates float64) float64 { return 1/rates - 1 }
	res.Ratio, res.Min, res.Max = more(res.Ratio), more(res.Max), more(res.Min)
	res.Rate = 1 / (1/res.Rate - 1/res.YardstickRate)
	res.MaxRatio = 2
	return res, err
}
