package wayamqp_test

import (
	"context"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/worker"
)

// A relay to an exchange. It needs a broker to run.
func ExampleNewPublisher() {
	ctx := context.Background()
	cfg := wayamqp.Config{URL: "amqp://guest:guest@localhost:5672/", Exchange: "events", KeyHeader: true}
	_, err := wayamqp.Declare(ctx, cfg)
	check(err)
	to, err := wayamqp.NewPublisher(cfg)
	check(err)
	defer to.Close()
	relay, err := outbox.NewRelay(memory.NewDB(), to, outbox.RelayConfig{Transport: "events"})
	check(err)
	check(relay.Run(ctx))
}

// A worker on a queue. It needs a broker to run.
func ExampleNewConsumer() {
	ctx := context.Background()
	cfg := wayamqp.Config{
		URL:                  "amqp://guest:guest@localhost:5672/",
		Queue:                "billing",
		Bindings:             []wayamqp.Binding{{Exchange: "events", Key: "order.*"}},
		SingleActiveConsumer: true, // keeps the order of keys
	}
	_, err := wayamqp.Declare(ctx, cfg)
	check(err)
	from, err := wayamqp.NewConsumer(cfg)
	check(err)
	defer from.Close()
	w, err := worker.New(waybill.NewBus("billing"), from, worker.Config{Transport: "billing"})
	check(err)
	check(w.Run(ctx))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
