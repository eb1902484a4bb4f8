package demo

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/middleware"
	"github.com/waybill-go/waybill/worker"
)

const (
	lostAckShare = 0.03 // of the acknowledgements
	failureShare = 0.02 // of the handlings
)

// billing is the service that consumes.
type billing struct {
	figures *Figures
	worker  *worker.Worker
	seen    *consumer

	mu   sync.Mutex
	dice *rand.Rand
}

func newBilling(opt Options, site *deployment, figures *Figures) (*billing, error) {
	b := &billing{figures: figures, dice: dice(opt, 2)}
	b.seen = &consumer{broker: site.broker, figures: figures, dice: dice(opt, 3), first: map[waybill.MessageID]bool{}, open: map[waybill.MessageID]bool{}}
	bus := waybill.NewBus("billing", middleware.Recover())
	site.billing.serve(bus, b)
	var err error
	b.worker, err = worker.New(bus, b.seen, worker.Config{
		Transport: transport, Concurrency: 16, Prefetch: 200, Observer: b,
		Retry: waybill.Backoff{Delay: 20 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second},
	})
	return b, err
}

func (b *billing) run(ctx context.Context) error { return b.worker.Run(ctx) }

var errGatewayDown = errors.New("payment gateway does not answer")

// outcome decides how a handling ends that has written its effect.
func (b *billing) outcome() error {
	if b.chance(failureShare) {
		b.figures.failures.Add(1)
		return errGatewayDown
	}
	b.figures.handled.Add(1)
	return nil
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

// consumer receives from the broker over a network that loses acknowledgements,
// and records the deliveries.
type consumer struct {
	broker
	figures *Figures

	mu    sync.Mutex
	dice  *rand.Rand
	first map[waybill.MessageID]bool
	open  map[waybill.MessageID]bool // delivered, and not handled yet
	order []waybill.MessageID        // of first deliveries
}

// Receive records the deliveries that it returns.
func (c *consumer) Receive(ctx context.Context, max int) ([]*waybill.Delivery, error) {
	ds, err := c.broker.Receive(ctx, max)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range ds {
		c.figures.delivered.Add(1)
		c.open[d.Record.ID] = true
		if !c.first[d.Record.ID] {
			c.first[d.Record.ID] = true
			c.order = append(c.order, d.Record.ID)
		}
	}
	return ds, err
}

// Ack loses a share: the broker delivers these messages again.
func (c *consumer) Ack(ctx context.Context, ds ...*waybill.Delivery) error {
	var arrived, lost []*waybill.Delivery
	c.mu.Lock()
	for _, d := range ds {
		if c.dice.Float64() < lostAckShare {
			lost = append(lost, d)
		} else {
			arrived = append(arrived, d)
		}
	}
	c.mu.Unlock()
	if len(lost) > 0 && !c.broker.lose(ctx, lost) {
		arrived, lost = append(arrived, lost...), nil
	}
	c.figures.lostAcks.Add(int64(len(lost)))
	err := c.broker.Ack(ctx, arrived...)
	// All of them have had their effect. One that is delivered again is open again.
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range append(arrived, lost...) {
		delete(c.open, d.Record.ID)
	}
	return err
}

// inHand counts the messages that were delivered and not handled.
func (c *consumer) inHand() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}
