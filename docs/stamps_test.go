package docs_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/middleware"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

func Example_stamps() {
	ctx := context.Background()
	out, db := shopOutbox(outbox.Config{})
	order, cartID := OrderPlaced{"o-7", 4200}, "cart-3"

	err := out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
		_, err := tx.Dispatch(ctx, order,
			waybill.PartitionKey(cartID),
			waybill.Delay(5*time.Minute),
			waybill.Header("tenant", "acme"))
		return err
	})

	check(err)
	rec := db.Pending("")[0]
	fmt.Println(rec.Key, rec.Delay, rec.Headers["tenant"])
	// Output: cart-3 5m0s acme
}

func Example_readStamps() {
	ctx := context.Background()
	bus := waybill.NewBus("shop")

	waybill.Handle(bus, "mail", func(ctx context.Context, m OrderPlaced) error {
		env := waybill.EnvelopeFrom(ctx)
		tenant, _ := env.Header("tenant")
		failed, _ := waybill.Last[waybill.Redelivery](env)
		fmt.Println(m.OrderID, "of", tenant, "attempt", failed.Failures+1)
		return nil
	})

	check(bus.HandleRecord(ctx, encoded(OrderPlaced{"o-7", 4200}, waybill.Header("tenant", "acme")), "events", 2))
	// Output: o-7 of acme attempt 3
}

func Example_idempotencyKey() {
	ctx := context.Background()
	db, bus := memory.NewDB(), waybill.NewBus("shop")
	queue := db.Queue("events")
	bus.AddSender("events", queue)
	bus.Route("*", "events")
	inbox.Handle(bus, db, "charge", func(_ context.Context, tx *memory.Tx, m OrderPlaced) error {
		tx.OnCommit(func() { fmt.Println("charged", m.OrderID) })
		return nil
	})
	order := OrderPlaced{"o-7", 4200}

	for range 2 { // the customer pressed twice: two messages, one effect
		_, err := bus.Dispatch(ctx, order, waybill.IdempotencyKey("charge-"+order.OrderID))
		check(err)
	}

	work(ctx, bus, queue, 2)
	// Output: charged o-7
}

func Example_derivedID() {
	ctx := context.Background()
	out, db := shopOutbox(outbox.Config{})
	bus := waybill.NewBus("shop")

	waybill.Handle(bus, "receipt", func(ctx context.Context, m OrderPlaced) error {
		return out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
			_, err := tx.Dispatch(ctx, SendReceipt{m.OrderID}, waybill.DerivedID("receipt"))
			return err
		})
	})

	rec := encoded(OrderPlaced{"o-7", 4200})
	for range 2 {
		check(bus.HandleRecord(ctx, rec, "events", 0))
	}
	sent := db.Pending("")
	fmt.Println("the same id:", sent[0].ID == sent[1].ID)
	// Output: the same id: true
}

func Example_correlation() {
	ctx := context.Background()
	out, db := shopOutbox(outbox.Config{Middleware: []waybill.Middleware{middleware.Correlation()}})
	bus := waybill.NewBus("shop")
	waybill.Handle(bus, "receipt", func(ctx context.Context, m OrderPlaced) error {
		dispatch(ctx, out, SendReceipt{m.OrderID})
		return nil
	})
	rec := encoded(OrderPlaced{"o-7", 4200})
	check(bus.HandleRecord(ctx, rec, "events", 0))
	next := db.Pending("")[0]
	fmt.Println(next.Headers[waybill.HeaderCorrelationID] == rec.ID.String(), next.Headers[waybill.HeaderCausationID] == rec.ID.String())
	// Output: true true
}

func Example_unique() {
	ctx := context.Background()
	db, remove := openShop(ctx)
	defer remove()
	out, err := outbox.New(db, outbox.Config{To: "events"})
	check(err)
	order := OrderPlaced{"o-7", 4200}

	submit := func() error { // the customer pressed twice: one order, one message
		return out.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
			id, err := waybill.NewMessageID()
			if err != nil {
				return err
			}
			first, err := tx.Dispatch(ctx, order, id, waybill.Unique{Key: "cart-7", For: 24 * time.Hour})
			if err != nil || first != id {
				return err // of another dispatch: it has saved the order, too
			}
			_, err = tx.SQL().ExecContext(ctx, "INSERT INTO orders VALUES (?, ?)", order.OrderID, order.Cents)
			return err
		})
	}

	twice := make(chan error)
	for range 2 {
		go func() { twice <- submit() }()
	}
	check(errors.Join(<-twice, <-twice))
	var orders int
	check(db.SQL().QueryRowContext(ctx, "SELECT count(*) FROM orders").Scan(&orders))
	backlog, err := db.Backlog(ctx, "events")
	check(err)
	fmt.Println(orders, "order,", backlog.Pending, "message")
	// Output: 1 order, 1 message
}
