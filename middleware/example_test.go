package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/middleware"
)

type orderPlaced struct {
	OrderID string `json:"orderId"`
	Cents   int    `json:"cents"`
}

func (orderPlaced) MessageName() string    { return "order.placed" }
func (m orderPlaced) PartitionKey() string { return m.OrderID }

func (m orderPlaced) Validate() error {
	if m.Cents < 0 {
		return errors.New("negative price")
	}
	return nil
}

func ExampleValidate() {
	bus := waybill.NewBus("shop", middleware.Validate())
	waybill.Handle(bus, "print", func(_ context.Context, m orderPlaced) error {
		fmt.Println("handled", m.OrderID)
		return nil
	})
	_, err := bus.Dispatch(context.Background(), orderPlaced{"o-7", -1})
	fmt.Println(err)
	// Output: invalid middleware_test.orderPlaced: negative price
}

func ExampleTimeout() {
	bus := waybill.NewBus("shop", middleware.Recover(), middleware.Log(slog.New(slog.DiscardHandler)), middleware.Timeout(time.Millisecond))
	waybill.Handle(bus, "slow", func(ctx context.Context, m orderPlaced) error {
		<-ctx.Done()
		return ctx.Err()
	})
	_, err := bus.Dispatch(context.Background(), orderPlaced{"o-7", 4200})
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}

func ExampleThrottle() {
	// Ten mails a second, and up to five at once; other messages of the bus do not wait.
	bus := waybill.NewBus("shop", middleware.For(middleware.Message("order.placed"), middleware.Throttle(10, 5)))
	waybill.Handle(bus, "mail", func(_ context.Context, m orderPlaced) error {
		fmt.Println("mailed", m.OrderID)
		return nil
	})
	fmt.Println(bus.Handle(context.Background(), receivedOrder("o-7")))
	// Output:
	// mailed o-7
	// <nil>
}

func ExampleCircuitBreaker() {
	// After two failures in a row the payment provider has a pause of half a minute.
	bus := waybill.NewBus("shop", middleware.CircuitBreaker(2, 30*time.Second))
	waybill.Handle(bus, "charge", func(context.Context, orderPlaced) error {
		fmt.Println("calling the provider")
		return errors.New("status 503")
	})
	for range 3 {
		err := bus.Handle(context.Background(), receivedOrder("o-7"))
		fmt.Println(err, errors.Is(err, waybill.ErrUnavailable))
	}
	// Output:
	// calling the provider
	// charge: status 503 false
	// calling the provider
	// charge: status 503 false
	// circuit breaker open after 2 failures, the last: charge: status 503: unavailable true
}

func ExampleFor() {
	// One bus for several transports, of which one is slow on purpose.
	bus := waybill.NewBus("shop", middleware.For(middleware.Transport("mail"), middleware.Throttle(1, 1)))
	waybill.Handle(bus, "print", func(_ context.Context, m orderPlaced) error {
		fmt.Println("handled", m.OrderID)
		return nil
	})
	fmt.Println(bus.Handle(context.Background(), receivedOrder("o-7")))
	// Output:
	// handled o-7
	// <nil>
}

// receivedOrder returns a message as a worker gives it to its bus.
func receivedOrder(id string) *waybill.Envelope {
	return waybill.NewEnvelope(orderPlaced{id, 4200}, waybill.MessageName("order.placed"), waybill.Received{Transport: "events"})
}
