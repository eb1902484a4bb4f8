package docs_test

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

func Example_outboxRoutes() {
	ctx := context.Background()
	db := memory.NewDB()

	out, err := outbox.New(db, outbox.Config{
		Routes: waybill.Routes{
			"order.*":      {"events"},
			"receipt.send": {"mail"},
			"*":            {"events", "audit"}, // a copy for each
		},
		Queues:     map[string]string{"mail": "mail"}, // a queue of the same database: no relay
		Transports: []string{"partners"},              // further names, for a stamp
	})

	check(err)
	dispatch(ctx, out, OrderPlaced{"o-7", 4200})
	dispatch(ctx, out, SendReceipt{"o-7"})

	dispatch(ctx, out, OrderPlaced{"o-8", 100}, waybill.TransportNames{"partners"})

	fmt.Println(len(db.Pending("events")), len(db.Pending("mail")), db.Queue("mail").Len(), len(db.Pending("partners")))
	// Output: 1 0 1 1
}

func Example_busRoutes() {
	ctx := context.Background()
	db := memory.NewDB()

	bus := waybill.NewBus("shop")
	bus.AddSender("events", db.Queue("events"))
	bus.Route("order.*", "events")
	waybill.Handle(bus, "mail", func(ctx context.Context, m SendReceipt) error {
		fmt.Println("receipt for", m.OrderID)
		return nil
	})

	_, err := bus.Dispatch(ctx, OrderPlaced{"o-7", 4200}) // to events, in no transaction
	check(err)
	_, err = bus.Dispatch(ctx, SendReceipt{"o-7"}) // no route: handled at once
	check(err)

	fmt.Println(db.Queue("events").Len(), "message in events")
	// Output:
	// receipt for o-7
	// 1 message in events
}

// Example_rabbitmq compiles; it needs a broker to run.
func Example_rabbitmq() {
	ctx := context.Background()
	db := memory.NewDB()

	events := wayamqp.Config{
		URL:       "amqp://guest:guest@localhost:5672/",
		Exchange:  "events", // a topic exchange; the routing key is the message name
		KeyHeader: true,     // sends the partition key along, for the order at workers
	}
	billing := wayamqp.Config{
		URL:                  events.URL,
		Queue:                "billing",
		Bindings:             []wayamqp.Binding{{Exchange: "events", Key: "order.*"}},
		SingleActiveConsumer: true,
	}
	for _, cfg := range []wayamqp.Config{events, billing} {
		_, err := wayamqp.Declare(ctx, cfg) // or `waybill schema up --transports`
		check(err)
	}

	to, err := wayamqp.NewPublisher(events)
	check(err)
	relay, err := outbox.NewRelay(db, to, outbox.RelayConfig{Transport: "events"}) // one for each transport
	check(err)
	go relay.Run(ctx)
	from, err := wayamqp.NewConsumer(billing) // for worker.New
	check(err)

	work(ctx, waybill.NewBus("billing"), from, 0)
}
