package waypg_test

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

type orderPlaced struct {
	OrderID string `json:"orderId"`
	Cents   int    `json:"cents"`
}

func (orderPlaced) MessageName() string    { return "order.placed" }
func (m orderPlaced) PartitionKey() string { return m.OrderID }

// With a pool of the application and pgx. It needs a server to run.
func ExampleNew() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	check(err)
	defer pool.Close()
	db, err := waypg.New(pool, waypg.Config{Schema: "messaging", Notify: true})
	check(err)
	defer db.Close()

	out, err := outbox.New(db, outbox.Config{To: "events"})
	check(err)
	check(out.InTx(ctx, func(ctx context.Context, tx waypg.Tx) error {
		if _, err := tx.SQL().Exec(ctx, "INSERT INTO orders (id, cents) VALUES ($1, $2)", "o-7", 4200); err != nil {
			return err
		}
		_, err := tx.Dispatch(ctx, orderPlaced{"o-7", 4200})
		return err
	}))

	bus := waybill.NewBus("billing")
	inbox.Handle(bus, db, "billing", func(ctx context.Context, tx pgx.Tx, m orderPlaced) error {
		_, err := tx.Exec(ctx, "INSERT INTO invoices (order_id, cents) VALUES ($1, $2)", m.OrderID, m.Cents)
		return err
	})
}

// With transactions of database/sql. It needs a server to run.
func ExampleDB_SQL() {
	ctx := context.Background()
	db, err := waypg.Open(ctx, "postgres://localhost/shop", waypg.Config{})
	check(err)
	defer db.Close()
	out, err := outbox.New(db.SQL(), outbox.Config{To: "events"})
	check(err)
	check(out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*sql.Tx]) error {
		_, err := tx.Dispatch(ctx, orderPlaced{"o-7", 4200})
		return err
	}))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
