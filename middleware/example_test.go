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
