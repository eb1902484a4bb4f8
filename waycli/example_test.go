package waycli_test

import (
	"context"
	"fmt"
	"os"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/waycli"
)

type orderPlaced struct {
	OrderID string `json:"orderId"`
}

func (orderPlaced) MessageName() string { return "order.placed" }

// A binary with handlers: `shop consume orders` runs them. A real binary has
// Databases, and its func main passes the context of WithSignals.
func ExampleMain() {
	app := waycli.App{
		Name: "shop",
		Bus: func(context.Context, *waycli.Service) (*waybill.Bus, error) {
			bus := waybill.NewBus("shop")
			waybill.Handle(bus, "print", func(_ context.Context, m orderPlaced) error {
				fmt.Println("placed", m.OrderID)
				return nil
			})
			return bus, nil
		},
	}
	code := waycli.Main(context.Background(), app, []string{"consum", "orders"}, os.Stdin, os.Stdout, os.Stdout)
	fmt.Println("exit code", code)
	// Output:
	// shop: unknown command "consum" for shop
	// hint: did you mean "consume"?
	// exit code 2
}
