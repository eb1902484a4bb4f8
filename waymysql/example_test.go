package waymysql_test

import (
	"context"
	"database/sql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

type orderPlaced struct {
	OrderID string `json:"orderId"`
	Cents   int    `json:"cents"`
}

func (orderPlaced) MessageName() string    { return "order.placed" }
func (m orderPlaced) PartitionKey() string { return m.OrderID }

// It needs a server to run.
func ExampleOpen() {
	ctx := context.Background()
	db, err := waymysql.Open(ctx, "app:secret@tcp(localhost:3306)/shop", waymysql.Config{})
	check(err)
	defer db.Close()

	out, err := outbox.New(db, outbox.Config{To: "events"})
	check(err)
	check(out.InTx(ctx, func(ctx context.Context, tx waymysql.Tx) error {
		if _, err := tx.SQL().ExecContext(ctx, "INSERT INTO orders (id, cents) VALUES (?, ?)", "o-7", 4200); err != nil {
			return err
		}
		_, err := tx.Dispatch(ctx, orderPlaced{"o-7", 4200})
		return err
	}))

	bus := waybill.NewBus("billing")
	inbox.Handle(bus, db, "billing", func(ctx context.Context, tx *sql.Tx, m orderPlaced) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO invoices (order_id, cents) VALUES (?, ?)", m.OrderID, m.Cents)
		return err
	})
}

// A pool of the application's own: its transactions can dispatch as well.
func ExampleNew() {
	ctx := context.Background()
	pool, err := sql.Open("mysql", "app:secret@tcp(localhost:3306)/shop?interpolateParams=true")
	check(err)
	defer pool.Close()
	db, err := waymysql.New(pool, waymysql.Config{})
	check(err)
	defer db.Close()

	out, err := outbox.New(db, outbox.Config{To: "events"})
	check(err)
	tx, err := pool.BeginTx(ctx, nil)
	check(err)
	defer tx.Rollback()
	_, err = tx.ExecContext(ctx, "INSERT INTO orders (id, cents) VALUES (?, ?)", "o-7", 4200)
	check(err)
	_, err = out.Dispatch(ctx, tx, orderPlaced{"o-7", 4200}) // the last before the commit
	check(err)
	check(tx.Commit())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
