package outbox_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
)

type orderPlaced struct {
	OrderID string `json:"orderId"`
	Cents   int    `json:"cents"`
}

func (orderPlaced) MessageName() string    { return "order.placed" }
func (m orderPlaced) PartitionKey() string { return m.OrderID }

func ExampleOutbox_InTx() {
	ctx := context.Background()
	db := memory.NewDB() // or waypg.New, waymysql.Open, waysqlite.Open
	out, err := outbox.New(db, outbox.Config{To: "events"})
	check(err)
	err = out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
		if _, err := tx.Dispatch(ctx, orderPlaced{"o-7", 4200}); err != nil {
			return err
		}
		return errors.New("card declined") // rolls back
	})
	fmt.Println(err, len(db.Pending("events")))
	// Output: card declined 0
}

func ExampleTx_Savepoint() {
	ctx := context.Background()
	db := memory.NewDB()
	out, err := outbox.New(db, outbox.Config{To: "events"})
	check(err)
	check(out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
		for _, o := range []orderPlaced{{"o-7", 4200}, {"o-8", -1}} {
			err := tx.Savepoint(ctx, func(ctx context.Context) error {
				if _, err := tx.Dispatch(ctx, o); err != nil {
					return err
				}
				if o.Cents < 0 {
					return errors.New("negative price") // takes the message of this order back
				}
				return nil
			})
			if err != nil {
				fmt.Println(o.OrderID, err)
			}
		}
		return nil
	}))
	for _, rec := range db.Pending("events") {
		fmt.Println("dispatched", rec.Key)
	}
	// Output:
	// o-8 negative price
	// dispatched o-7
}

func ExampleRelay_Run() {
	ctx := context.Background()
	db, broker := memory.NewDB(), memory.NewDB().Queue("events")
	out, err := outbox.New(db, outbox.Config{To: "events"})
	check(err)
	check(out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
		_, err := tx.Dispatch(ctx, orderPlaced{"o-7", 4200}, waybill.Header("tenant", "acme"))
		return err
	}))

	relay, err := outbox.NewRelay(db, broker, outbox.RelayConfig{
		Transport: "events",
		Drain:     true, // without it Run returns when ctx ends
	})
	check(err)
	check(relay.Run(ctx))
	fmt.Println(len(db.Pending("events")), broker.Len())
	// Output: 0 1
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
