package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/worker"
)

const (
	retryingRatio = 1.5              // of the 99th percentiles, at the most
	retryingDelay = time.Minute      // half of it to one and a half: each message is tried so often
	retryingWarm  = 2 * time.Second  // of a side, not measured
	retryingLate  = 30 * time.Second // the longest that a live message may take
)

// stamped is a message with the time of its publishing.
type stamped struct {
	Key string
	At  time.Time
	Bad bool
	N   int // of its key, for bad ones of retryingKeys
}

func (stamped) MessageName() string    { return "stamped" }
func (m stamped) PartitionKey() string { return m.Key }

// retryingMessages measures live messages of a worker while others of its transport wait
// for retries in its store, and fail again, against the same without them.
func retryingMessages(ctx context.Context, opt Options, name string, size int) (_ []Result, err error) {
	sides, closeAll, err := retryingSides(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	opt.say("%s: loading %d messages", name, size)
	if err := sides[0].load(ctx, size); err != nil {
		return nil, err
	}
	res := Result{Case: "starve, " + name, Database: sides[0].name, Keys: opt.Keys, Workers: 10, Ordering: "strict", Rounds: opt.Rounds, Rows: size, MaxRatio: retryingRatio}
	if res, err = compare(ctx, opt, res, sides[0].side, sides[1].side); err != nil {
		return nil, err
	}
	if err := sides.failed(opt, res); err != nil {
		return nil, err
	}
	heap := res
	heap.Case, heap.MaxRatio, heap.Latency, heap.YardstickLatency = res.Case+", heap", 0, nil, nil
	heap.Growth = &Growth{Unit: "MB", From: median(sides[0].early), To: median(sides[0].late), MaxTo: 16}
	heap.Growth.Factor = heap.Growth.To / heap.Growth.From
	heap.Ratio, heap.Min, heap.Max = heap.Growth.Factor, heap.Growth.Factor, heap.Growth.Factor
	return []Result{res, heap}, nil
}

// retryingPair is a worker with the load, and one without.
type retryingPair [2]*retrying

func retryingSides(ctx context.Context, opt Options) (sides retryingPair, closeAll func() error, err error) {
	broker, err := newBroker(opt)
	if err != nil {
		return sides, nil, err
	}
	ends := []func() error{broker.close}
	closeAll = func() error {
		var errs []error
		for _, end := range slices.Backward(ends) {
			errs = append(errs, end())
		}
		return errors.Join(errs...)
	}
	retry := waybill.Backoff{Delay: retryingDelay, Multiplier: 1, MaxDelay: retryingDelay, Jitter: 0.5}
	for i := range sides {
		p, err := newBackend(ctx, opt)
		if err != nil {
			return sides, nil, errors.Join(err, closeAll())
		}
		ends = append(ends, p.close)
		sides[i] = &retrying{broker: broker, opt: opt, store: p.store().(worker.Store), name: p.database(), retry: retry}
	}
	return sides, closeAll, nil
}

// failed is an error unless messages of the load have failed, and no others.
func (p retryingPair) failed(opt Options, res Result) error {
	with, without := p[0].failed.Load(), p[1].failed.Load()
	if with == 0 || without > 0 {
		return fmt.Errorf("%d retries with the load and %d without", with, without)
	}
	opt.say("%s: %d retries meanwhile", res.Case, with)
	return nil
}

// retrying is a worker with a store of its own.
type retrying struct {
	broker *broker
	opt    Options
	store  worker.Store
	name   string
	retry  waybill.Backoff
	keys   *badKeys // of retryingKeys

	failed      atomic.Int64
	early, late []float64 // heap in MB after the warm-up of each turn, and at its end

	mu   sync.Mutex
	took []float64 // of the live messages of a turn, in milliseconds
	seen int       // of all
}

// load stores messages that wait for their retries, due in the first delay.
func (r *retrying) load(ctx context.Context, size int) error {
	q, err := r.store.RetryQueue("bench")
	if err != nil {
		return err
	}
	for first := 0; first < size; first += 100 {
		var moves []worker.Move
		for i := first; i < min(first+100, size); i++ {
			m := stamped{Key: fmt.Sprint("bad-", i), Bad: true}
			body, err := waybill.JSON{}.Encode(m)
			if err != nil {
				return err
			}
			id, err := waybill.NewMessageID()
			if err != nil {
				return err
			}
			rec := &waybill.Record{ID: id, Name: m.MessageName(), Key: m.Key, ContentType: "application/json", Body: body, DispatchedAt: time.Now()}
			moves = append(moves, worker.Move{Delivery: &waybill.Delivery{Record: rec}, Attempt: &worker.Attempt{At: time.Now()}, Delay: retryingDelay * time.Duration(i) / time.Duration(size)})
		}
		if err := q.Add(ctx, moves...); err != nil {
			return err
		}
	}
	return nil
}

// side runs a worker for a slice, and publishes to its queue.
func (r *retrying) side(ctx context.Context) (_ quantiles, err error) {
	if _, err := r.broker.ch.QueuePurge(r.broker.name, false); err != nil {
		return quantiles{}, err
	}
	from, err := wayamqp.NewConsumer(wayamqp.Config{URL: r.opt.Broker, Queue: r.broker.name, CompetingConsumers: true})
	if err != nil {
		return quantiles{}, err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	bus := waybill.NewBus("bench")
	waybill.Handle(bus, "time", r.handle)
	w, err := worker.New(bus, from, worker.Config{
		Transport: "bench", Store: r.store, MaxRetries: 1_000_000, Retry: r.retry,
	})
	if err != nil {
		return quantiles{}, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	defer func() { stop(); err = errors.Join(err, <-ended) }()
	if err := r.publish(ctx, retryingWarm); err != nil {
		return quantiles{}, err
	}
	if err := r.keys.begin(ctx, r); err != nil {
		return quantiles{}, err
	}
	r.early = append(r.early, heapMB())
	if err := r.publish(ctx, r.opt.Slice); err != nil {
		return quantiles{}, err
	}
	r.late = append(r.late, heapMB())
	return quantilesOf(r.took), r.keys.end(ctx)
}

func (r *retrying) handle(_ context.Context, m stamped) error {
	if m.Bad && r.keys.fails(m) {
		r.failed.Add(1)
		return errRefused
	}
	if m.Bad {
		return r.keys.handled(m)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took = append(r.took, float64(time.Since(m.At).Microseconds())/1000)
	r.seen++
	return nil
}

// publish sends live messages for a time, and waits until all are handled.
func (r *retrying) publish(ctx context.Context, length time.Duration) error {
	r.mu.Lock()
	r.took, r.seen = nil, 0
	r.mu.Unlock()
	tick := time.NewTicker(livePace)
	defer tick.Stop()
	sent := 0
	for start := time.Now(); time.Since(start) < length; sent++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if err := r.send(ctx, stamped{Key: keyOf(sent, r.opt.Keys), At: time.Now()}); err != nil {
			return err
		}
	}
	for limit := time.Now().Add(retryingLate); ctx.Err() == nil; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		seen := r.seen
		r.mu.Unlock()
		if seen == sent {
			return nil
		}
		if time.Now().After(limit) {
			return fmt.Errorf("%d of %d live messages were handled within %v", seen, sent, retryingLate)
		}
	}
	return ctx.Err()
}

func (r *retrying) send(ctx context.Context, m stamped) error {
	body, err := waybill.JSON{}.Encode(m)
	if err != nil {
		return err
	}
	id, err := waybill.NewMessageID()
	if err != nil {
		return err
	}
	return r.broker.ch.PublishWithContext(ctx, "", r.broker.name, true, false, amqp.Publishing{
		MessageId: id.String(), Type: m.MessageName(), ContentType: "application/json", Body: body, Headers: amqp.Table{"x-partition-key": m.Key},
	})
}

// heapMB returns the size of the heap without garbage.
func heapMB() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}
