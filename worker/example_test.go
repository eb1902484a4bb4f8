package worker_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/worker"
)

type orderPlaced struct {
	OrderID string `json:"orderId"`
	Cents   int    `json:"cents"`
}

func (orderPlaced) MessageName() string    { return "order.placed" }
func (m orderPlaced) PartitionKey() string { return m.OrderID }

func ExampleWorker_Run() {
	ctx := context.Background()
	bus, queue := waybill.NewBus("billing"), memory.NewDB().Queue("events")
	failed := false
	waybill.Handle(bus, "billing", func(_ context.Context, m orderPlaced) error {
		if !failed {
			failed = true
			return errors.New("deadlock")
		}
		fmt.Println("billed", m.OrderID)
		return nil
	})
	sender := waybill.NewBus("shop")
	sender.AddSender("events", queue)
	sender.Route("order.*", "events")
	_, err := sender.Dispatch(ctx, orderPlaced{"o-7", 4200})
	check(err)

	w, err := worker.New(bus, queue, worker.Config{
		Transport: "events",
		Retry:     waybill.Backoff{Delay: time.Millisecond},
		Idle:      100 * time.Millisecond, // without it Run returns when ctx ends
	})
	check(err)
	check(w.Run(ctx))
	// Output: billed o-7
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
