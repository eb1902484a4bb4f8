package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/worker"
)

// An inboxBackend is a backend with a handler, by waybill and by hand. Each message
// inserts a row of {}orders, whose cents are the message's number.
type inboxBackend interface {
	backend
	handle(bus *waybill.Bus, opts ...inbox.Option)
	// handleByHand handles messages in one transaction. The dedup rows of ideal go
	// to {}seen, with a savepoint for each of several messages; the dedup rows of
	// bare go to {}seen_bare, without savepoints.
	handleByHand(ctx context.Context, y yardstick, ids []string, ms []sold) error
	// clearInbox empties the tables, effects counts the orders and their distinct
	// values.
	clearInbox(ctx context.Context) error
	effects(ctx context.Context) (all, different int, err error)
}

// atOnce are the numbers of workers for one message a transaction.
var atOnce = []int{1, 8, 32}

const (
	groupSize   = 50
	groupLinger = 2 * time.Millisecond
	prefetch    = 256
)

// Inbox measures a worker with an inbox against loops by hand that do the same:
// one message a transaction, and groups. The queue is filled before each round,
// and each message's effect is counted after it.
func Inbox(ctx context.Context, opt Options) (_ []Result, err error) {
	at, broker, closeBoth, err := openBoth(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeBoth()) }()
	c := consumers{inboxBackend: at.(inboxBackend), broker: broker, opt: opt, yardstick: ideal}
	plain := c
	plain.yardstick = bare
	workers := atOnce
	if opt.Workers > 0 {
		workers = []int{opt.Workers}
	}
	var results []Result
	measure := func(name string, n int, target float64, sides ...side) error {
		res := Result{Case: name, Database: at.database(), Keys: opt.Keys, Workers: n, Ordering: "strict", Target: target}
		res, err := race(ctx, opt, res, sides...)
		results = append(results, res)
		return err
	}
	for _, n := range workers {
		if err := measure("inbox", n, 0.9, c.worker(n), c.loops(n, c.each), c.loops(n, plain.each)); err != nil {
			return nil, err
		}
	}
	group := inbox.Group(groupSize)
	for _, groups := range []int{1, 2, 4} {
		n := groups * groupSize
		if err := measure(fmt.Sprintf("inbox, Group(%d)", groupSize), n, 0.9, c.worker(n, group), c.loops(groups, c.grouped), c.loops(groups, plain.grouped)); err != nil {
			return nil, err
		}
	}
	last := workers[len(workers)-1]
	err = measure(fmt.Sprintf("inbox, Group(%d) against %d at once, one a transaction", groupSize, last), 4*groupSize, 2, c.worker(4*groupSize, group), c.worker(last))
	return results, err
}

// consumers are both sides of a case.
type consumers struct {
	inboxBackend
	broker    *broker
	opt       Options
	yardstick yardstick // for each and grouped
}

// round fills the queue, runs consume and checks its effects.
func (c consumers) round(ctx context.Context, consume func(ctx context.Context) error) (int, time.Duration, error) {
	if err := errors.Join(c.clearInbox(ctx), c.broker.fill(ctx, c.opt.Rows, c.opt.Keys)); err != nil {
		return 0, 0, err
	}
	stop := c.opt.clock()
	err := consume(ctx)
	took := stop()
	if err != nil {
		return 0, 0, err
	}
	all, different, err := c.effects(ctx)
	if err == nil && (all != c.opt.Rows || different != c.opt.Rows) {
		err = fmt.Errorf("%d effects, %d of them different: want %d", all, different, c.opt.Rows)
	}
	if err != nil {
		return 0, 0, err
	}
	return c.opt.Rows, took, c.broker.drained()
}

// worker is waybill's side.
func (c consumers) worker(n int, opts ...inbox.Option) side {
	return func(ctx context.Context) (int, time.Duration, error) {
		bus := waybill.NewBus("bench")
		c.handle(bus, opts...)
		return c.round(ctx, func(ctx context.Context) (err error) {
			from, err := wayamqp.NewConsumer(wayamqp.Config{URL: c.opt.Broker, Queue: c.broker.name, Prefetch: prefetch})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, from.Close()) }()
			w, err := worker.New(bus, from, worker.Config{Concurrency: n, Limit: c.opt.Rows})
			if err != nil {
				return err
			}
			return w.Run(ctx)
		})
	}
}

// loops runs n loops by hand on one connection, with a channel for each: an ack of
// several messages covers one channel.
func (c consumers) loops(n int, loop func(ctx context.Context, ch *amqp.Channel, deliveries <-chan amqp.Delivery, left *atomic.Int64) error) side {
	return func(ctx context.Context) (int, time.Duration, error) {
		return c.round(ctx, func(ctx context.Context) error {
			conn, err := amqp.Dial(c.opt.Broker)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			var left atomic.Int64
			left.Store(int64(c.opt.Rows))
			var wg sync.WaitGroup
			errs := make([]error, n)
			for i := range errs {
				wg.Go(func() {
					defer func() {
						if errs[i] != nil || left.Load() <= 0 {
							cancel()
						}
					}()
					ch, err := conn.Channel()
					if err == nil {
						err = ch.Qos(max(1, prefetch/n), 0, false)
					}
					if err != nil {
						errs[i] = err
						return
					}
					deliveries, err := ch.Consume(c.broker.name, "", false, false, false, false, nil)
					if err != nil {
						errs[i] = err
						return
					}
					errs[i] = loop(ctx, ch, deliveries, &left)
				})
			}
			wg.Wait()
			return errors.Join(errs...)
		})
	}
}

// each handles one message a transaction.
func (c consumers) each(ctx context.Context, _ *amqp.Channel, deliveries <-chan amqp.Delivery, left *atomic.Int64) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, ok := <-deliveries:
			if !ok {
				return amqp.ErrClosed
			}
			var m sold
			if err := json.Unmarshal(d.Body, &m); err != nil {
				return err
			}
			if err := c.handleByHand(context.WithoutCancel(ctx), c.yardstick, []string{d.MessageId}, []sold{m}); err != nil {
				return err
			}
			if err := d.Ack(false); err != nil {
				return err
			}
			if left.Add(-1) <= 0 {
				return nil
			}
		}
	}
}

// grouped gathers messages, at most for the linger, and handles them at once.
func (c consumers) grouped(ctx context.Context, ch *amqp.Channel, deliveries <-chan amqp.Delivery, left *atomic.Int64) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var ids []string
		var ms []sold
		var last uint64
		over := (<-chan time.Time)(nil)
	gather:
		for len(ms) < groupSize {
			select {
			case <-ctx.Done():
				if len(ms) == 0 {
					return nil
				}
				break gather
			case <-over:
				break gather
			case d, ok := <-deliveries:
				if !ok {
					return amqp.ErrClosed
				}
				var m sold
				if err := json.Unmarshal(d.Body, &m); err != nil {
					return err
				}
				if over == nil {
					timer.Reset(groupLinger)
					over = timer.C
				}
				ids, ms, last = append(ids, d.MessageId), append(ms, m), d.DeliveryTag
			}
		}
		if err := c.handleByHand(context.WithoutCancel(ctx), c.yardstick, ids, ms); err != nil {
			return err
		}
		if err := ch.Ack(last, true); err != nil {
			return err
		}
		if left.Add(-int64(len(ms))) <= 0 {
			return nil
		}
	}
}

// fill publishes so many messages, as a relay does.
func (b *broker) fill(ctx context.Context, rows, keys int) error {
	return b.fillTraced(ctx, rows, keys, 0)
}

// fillTraced is fill of messages with traces, of which one in so many is sampled.
func (b *broker) fillTraced(ctx context.Context, rows, keys, oneIn int) error {
	ch, err := b.conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	if err := ch.Confirm(false); err != nil {
		return err
	}
	var confirms []*amqp.DeferredConfirmation
	for i := range rows {
		m := sold{keyOf(i, keys), i, note}
		id, body, err := m.encode()
		if err != nil {
			return err
		}
		now, headers := time.Now(), amqp.Table{"x-partition-key": m.PartitionKey()}
		if oneIn > 0 {
			headers["traceparent"] = traceparent(id, i%oneIn == 0)
		}
		confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, b.name, m.MessageName(), true, false, amqp.Publishing{
			Headers: headers, MessageId: id.String(), Type: m.MessageName(), ContentType: "application/json", DeliveryMode: amqp.Persistent, Timestamp: now, Body: body,
		})
		if err != nil {
			return err
		}
		if confirms = append(confirms, confirm); len(confirms) == 1000 || i == rows-1 {
			if err := wait(ctx, confirms); err != nil {
				return err
			}
			confirms = nil
		}
	}
	return nil
}

// drained is an error when something is left in the queue.
func (b *broker) drained() error {
	q, err := b.ch.QueueDeclarePassive(b.name, true, false, false, false, nil)
	if err == nil && q.Messages > 0 {
		err = fmt.Errorf("%d messages were not acknowledged", q.Messages)
	}
	return err
}
