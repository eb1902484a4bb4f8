package docs_test

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill"
)

// OrderPlacedV2 has money with a currency, which a consumer of OrderPlaced cannot read.
type OrderPlacedV2 struct {
	OrderID string `json:"orderId"`
	Total   Money  `json:"total"`
}

type Money struct {
	Amount   int    `json:"amount"`
	Currency string `json:"currency"`
}

func (OrderPlacedV2) MessageName() string    { return "order.placed.v2" }
func (m OrderPlacedV2) PartitionKey() string { return m.OrderID }

func Example_twoVersions() {
	ctx := context.Background()
	bus := waybill.NewBus("billing")

	waybill.Upcast(bus, func(old OrderPlaced) (OrderPlacedV2, error) {
		return OrderPlacedV2{old.OrderID, Money{old.Cents, "EUR"}}, nil
	})
	waybill.Handle(bus, "billing", func(ctx context.Context, m OrderPlacedV2) error {
		fmt.Println(m.OrderID, m.Total.Amount, m.Total.Currency)
		return nil
	})

	check(bus.HandleRecord(ctx, encoded(OrderPlaced{"o-7", 4200}), "events", 0))
	check(bus.HandleRecord(ctx, encoded(OrderPlacedV2{"o-8", Money{100, "CHF"}}), "events", 0))
	// Output:
	// o-7 4200 EUR
	// o-8 100 CHF
}

func Example_alias() {
	ctx := context.Background()
	bus := waybill.NewBus("billing")
	waybill.Handle(bus, "billing", func(ctx context.Context, m OrderPlaced) error {
		fmt.Println(m.OrderID)
		return nil
	})

	bus.Types().Alias("shop.order", "order.placed") // messages on their way under the old name

	old := encoded(OrderPlaced{})
	old.Name, old.Body = "shop.order", []byte(`{"orderId":"o-7","cents":4200,"gift":true}`)
	check(bus.HandleRecord(ctx, old, "events", 0))
	// Output: o-7
}
