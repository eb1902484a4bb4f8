package waybill_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/middleware"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

type OrderPlaced struct {
	OrderID string `json:"orderId"`
	Cents   int    `json:"cents"`
}

func (OrderPlaced) MessageName() string    { return "order.placed" }
func (m OrderPlaced) PartitionKey() string { return m.OrderID } // optional: equal keys keep their order

// An order is placed, relayed and billed, all in one SQLite file.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "waybill-example-")
	check(err)
	defer os.RemoveAll(dir)
	db, err := waysqlite.Open(ctx, filepath.Join(dir, "shop.db"), waysqlite.Config{})
	check(err)
	defer db.Close()
	_, err = db.SchemaUp(ctx)
	check(err)
	_, err = db.SQL().ExecContext(ctx, "CREATE TABLE orders (id TEXT, cents INTEGER); CREATE TABLE invoices (order_id TEXT, cents INTEGER)")
	check(err)
	events, err := db.Queue("events", waysqlite.QueueConfig{})
	check(err)

	// The order service: the order and its message commit together, or neither does.
	out, err := outbox.New(db, outbox.Config{To: "events"})
	check(err)
	err = out.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
		if _, err := tx.SQL().ExecContext(ctx, "INSERT INTO orders VALUES (?, ?)", "o-7", 4200); err != nil {
			return err
		}
		_, err := tx.Dispatch(ctx, OrderPlaced{"o-7", 4200})
		return err
	})
	check(err)

	// The relay: from the outbox to the broker. Without Drain it runs until ctx ends.
	relay, err := outbox.NewRelay(db, events, outbox.RelayConfig{Transport: "events", Drain: true})
	check(err)
	check(relay.Run(ctx))

	// The billing service: the invoice and the inbox row of the message commit together.
	bus := waybill.NewBus("billing", middleware.Recover())
	inbox.Handle(bus, db, "billing", func(ctx context.Context, tx *sql.Tx, m OrderPlaced) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO invoices VALUES (?, ?)", m.OrderID, m.Cents)
		return err
	})
	w, err := worker.New(bus, events, worker.Config{Concurrency: 16, Limit: 1, Inbox: db}) // without Limit until ctx ends
	check(err)
	check(w.Run(ctx))

	var invoice string
	check(db.ReadSQL().QueryRowContext(ctx, "SELECT order_id || ': ' || cents FROM invoices").Scan(&invoice))
	fmt.Println(invoice)
	// Output: o-7: 4200
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
