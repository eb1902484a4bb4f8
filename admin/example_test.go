package admin_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

type orderPlaced struct {
	OrderID string `json:"orderId"`
	Cents   int    `json:"cents"`
}

func (orderPlaced) MessageName() string    { return "order.placed" }
func (m orderPlaced) PartitionKey() string { return m.OrderID }

// The databases of waypg, waymysql and waysqlite have these methods.
func ExampleDatabase() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "waybill-example-")
	check(err)
	defer os.RemoveAll(dir)
	sqlite, err := waysqlite.Open(ctx, filepath.Join(dir, "shop.db"), waysqlite.Config{})
	check(err)
	defer sqlite.Close()

	var db admin.Database = sqlite
	status, err := db.SchemaUp(ctx)
	check(err)
	fmt.Println("applied", status.Applied)

	out, err := outbox.New(sqlite, outbox.Config{To: "events"})
	check(err)
	check(out.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
		_, err := tx.Dispatch(ctx, orderPlaced{"o-7", 4200})
		return err
	}))
	messages, err := db.Outbox(ctx, admin.OutboxQuery{Key: "o-7", Limit: 10})
	check(err)
	for _, m := range messages {
		fmt.Println(m.Transport, m.Name, m.Key)
	}
	// Output:
	// applied [0001_initial]
	// events order.placed o-7
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
