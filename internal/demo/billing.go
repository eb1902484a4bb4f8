package demo

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/middleware"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

const (
	lostAckShare = 0.03 // of the acknowledgements
	failureShare = 0.02 // of the handlings
)

// billing is the service that consumes.
type billing struct {
	site    *site
	figures *Figures
	worker  *worker.Worker
	seen    *consumer

	mu   sync.Mutex
	dice *rand.Rand
}

func newBilling(opt Options, site *site, figures *Figures) (*billing, error) {
	b := &billing{site: site, figures: figures, dice: dice(opt, 2)}
	queue, err := site.broker.Queue(transport, waysqlite.QueueConfig{Lease: lease})
	if err != nil {
		return nil, err
	}
	b.seen = &consumer{Queue: queue, figures: figures, dice: dice(opt, 3), first: map[waybill.MessageID]bool{}}
	bus := waybill.NewBus("billing", middleware.Recover())
	handle(b, bus, func(m orderPlaced) (int, int) { return m.Order, m.Step })
	handle(b, bus, func(m orderPaid) (int, int) { return m.Order, m.Step })
	handle(b, bus, func(m orderShipped) (int, int) { return m.Order, m.Step })
	b.worker, err = worker.New(bus, b.seen, worker.Config{
		Transport: transport, Concurrency: 16, Prefetch: 200,
		Retry: waybill.Backoff{Delay: 20 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second},
	})
	return b, err
}

func (b *billing) run(ctx context.Context) error { return b.worker.Run(ctx) }

var errGatewayDown = errors.New("payment gateway does not answer")

// handle registers the handler of one message type: it writes an effect, and
// sometimes fails after that.
func handle[M any](b *billing, bus *waybill.Bus, what func(M) (order, step int)) {
	inbox.Handle(bus, b.site.billing, "billing", func(ctx context.Context, tx *sql.Tx, m M) error {
		order, step := what(m)
		id, _ := waybill.Last[waybill.MessageID](waybill.EnvelopeFrom(ctx))
		if _, err := tx.ExecContext(ctx, "INSERT INTO demo_effects (order_id, step, message_id) VALUES (?, ?, ?)", order, step, id); err != nil {
			return err
		}
		if b.chance(failureShare) {
			b.figures.failures.Add(1)
			return errGatewayDown
		}
		b.figures.handled.Add(1)
		return nil
	}, inbox.Option{Observer: b})
}

// Observe counts the duplicates that the inbox suppressed.
func (b *billing) Observe(_ context.Context, e waybill.Event) {
	if e.Kind == waybill.Duplicate {
		b.figures.suppressed.Add(1)
	}
}

func (b *billing) chance(share float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dice.Float64() < share
}

// consumer is the queue, with a network that loses acknowledgements, and a
// record of what was delivered.
type consumer struct {
	*waysqlite.Queue
	figures *Figures

	mu    sync.Mutex
	dice  *rand.Rand
	first map[waybill.MessageID]bool
	order []firstDelivery
}

// firstDelivery is a message that was delivered for the first time.
type firstDelivery struct {
	key string
	id  waybill.MessageID
}

// Receive records what it returns.
func (c *consumer) Receive(ctx context.Context, max int) ([]*waybill.Delivery, error) {
	ds, err := c.Queue.Receive(ctx, max)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range ds {
		c.figures.delivered.Add(1)
		if !c.first[d.Record.ID] {
			c.first[d.Record.ID] = true
			c.order = append(c.order, firstDelivery{d.Record.Key, d.Record.ID})
		}
	}
	return ds, err
}

// Ack loses a share: the broker delivers those again when their leases end.
func (c *consumer) Ack(ctx context.Context, ds ...*waybill.Delivery) error {
	var arrived []*waybill.Delivery
	c.mu.Lock()
	for _, d := range ds {
		if c.dice.Float64() < lostAckShare {
			c.figures.lostAcks.Add(1)
			continue
		}
		arrived = append(arrived, d)
	}
	c.mu.Unlock()
	return c.Queue.Ack(ctx, arrived...)
}
