package memory_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

type OrderPlaced struct {
	OrderID string `json:"orderId"`
	Cents   int    `json:"cents"`
}

func (OrderPlaced) MessageName() string    { return "order.placed" }
func (m OrderPlaced) PartitionKey() string { return m.OrderID }

// A message goes the whole way: from a transaction to an effect.
func Example() {
	ctx := context.Background()
	orders, broker, billing := memory.NewDB(), memory.NewDB(), memory.NewDB()

	out, err := outbox.New(orders, outbox.Config{To: "events"})
	if err != nil {
		panic(err)
	}
	err = out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
		_, err := tx.Dispatch(ctx, OrderPlaced{"o-7", 4200})
		return err
	})
	if err != nil {
		panic(err)
	}

	relay, err := outbox.NewRelay(orders, broker.Queue("events"), outbox.RelayConfig{Transport: "events", Drain: true})
	if err != nil {
		panic(err)
	}
	if err := relay.Run(ctx); err != nil {
		panic(err)
	}

	bus := waybill.NewBus("main")
	inbox.Handle(bus, billing, "billing", func(_ context.Context, tx *memory.Tx, m OrderPlaced) error {
		tx.OnCommit(func() { fmt.Printf("invoice over %d cents for %s\n", m.Cents, m.OrderID) })
		return nil
	})
	w, err := worker.New(bus, broker.Queue("events"), worker.Config{Transport: "events", Limit: 1})
	if err != nil {
		panic(err)
	}
	if err := w.Run(ctx); err != nil {
		panic(err)
	}
	fmt.Println("left in the queue:", broker.Queue("events").Len())
	// Output:
	// invoice over 4200 cents for o-7
	// left in the queue: 0
}

// A test inspects the messages of a transaction, without a relay.
func ExampleDB_Pending() {
	ctx := context.Background()
	db := memory.NewDB()
	out, err := outbox.New(db, outbox.Config{})
	if err != nil {
		panic(err)
	}
	place := func(id string, pay func() error) error {
		return out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
			if _, err := tx.Dispatch(ctx, OrderPlaced{id, 100}); err != nil {
				return err
			}
			return pay()
		})
	}
	fmt.Println(place("o-1", func() error { return nil }))
	fmt.Println(place("o-2", func() error { return errors.New("card declined") }))
	for _, rec := range db.Pending(outbox.DefaultTransport) {
		fmt.Printf("%s %s %s\n", rec.Name, rec.Key, rec.Body)
	}
	// Output:
	// <nil>
	// card declined
	// order.placed o-1 {"orderId":"o-1","cents":100}
}

// A queue is a transport of a bus like any other.
func ExampleQueue_Sent() {
	queue := memory.NewDB().Queue("events")
	bus := waybill.NewBus("main")
	bus.AddSender("events", queue)
	bus.Route("order.*", "events")
	if _, err := bus.Dispatch(context.Background(), OrderPlaced{"o-1", 100}, waybill.Header("tenant", "acme")); err != nil {
		panic(err)
	}
	for _, rec := range queue.Sent() {
		fmt.Println(rec.Name, rec.Headers["tenant"])
	}
	// Output: order.placed acme
}

func ExampleSync() {
	bus := waybill.NewBus("main")
	bus.AddSender("now", memory.Sync(bus))
	bus.Route("*", "now")
	waybill.Handle(bus, "print", func(_ context.Context, m OrderPlaced) error {
		fmt.Println("handled", m.OrderID)
		return nil
	})
	if _, err := bus.Dispatch(context.Background(), OrderPlaced{"o-1", 100}); err != nil {
		panic(err)
	}
	// Output: handled o-1
}
