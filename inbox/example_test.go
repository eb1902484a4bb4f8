package inbox_test

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
)

type orderPlaced struct {
	OrderID string `json:"orderId"`
	Cents   int    `json:"cents"`
}

func (orderPlaced) MessageName() string    { return "order.placed" }
func (m orderPlaced) PartitionKey() string { return m.OrderID }

func ExampleHandle() {
	ctx := context.Background()
	bus, db := waybill.NewBus("billing"), memory.NewDB()
	inbox.Handle(bus, db, "billing", func(_ context.Context, tx *memory.Tx, m orderPlaced) error {
		tx.OnCommit(func() { fmt.Println("billed", m.OrderID) }) // a write, on a database
		return nil
	})

	id, err := waybill.NewMessageID()
	check(err)
	rec, err := bus.Serializer().Encode(waybill.NewEnvelope(orderPlaced{"o-7", 4200}, id))
	check(err)
	for range 2 { // delivered twice
		check(bus.HandleRecord(ctx, rec, "events", 0))
	}
	// Output: billed o-7
}

func ExampleGroup() {
	bus, db := waybill.NewBus("billing"), memory.NewDB()
	// Give the worker a Concurrency of 50 or more.
	inbox.Handle(bus, db, "billing", func(_ context.Context, tx *memory.Tx, m orderPlaced) error {
		return nil
	}, inbox.Group(50))
	fmt.Println(bus.Types().Names())
	// Output: [order.placed]
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
