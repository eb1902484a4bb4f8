package docs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/middleware"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

func Example_handler() {
	ctx, log := context.Background(), slog.New(slog.DiscardHandler)
	queue := memory.NewDB().Queue("events")
	check(queue.Send(ctx, encoded(OrderPlaced{"o-7", 4200})))

	bus := waybill.NewBus("shop", middleware.Recover(), middleware.Log(log), middleware.Timeout(time.Minute))
	waybill.Handle(bus, "mail", func(ctx context.Context, m OrderPlaced) error {
		fmt.Println("thanks for", m.OrderID)
		return nil
	})

	w, err := worker.New(bus, queue, worker.Config{
		Transport:   "events", // for logs
		Concurrency: 16,       // handlers at once; messages of one key run one after another
		Limit:       1,        // Run returns after one message; without Limit when ctx ends
		Log:         log,
	})
	check(err)
	check(w.Run(ctx))
	// Output: thanks for o-7
}

func Example_limits() {
	bus := waybill.NewBus("shop",
		middleware.For(middleware.Message("receipt.send"), middleware.Throttle(10, 5)), // ten a second, five at once
		middleware.For(middleware.Transport("payments"), middleware.CircuitBreaker(5, 30*time.Second)),
	)
	waybill.Handle(bus, "mail", func(ctx context.Context, m SendReceipt) error { return nil })
	fmt.Println(bus.HandleRecord(context.Background(), encoded(SendReceipt{"o-7"}), "events", 0))
	// Output: <nil>
}

type tenantKey struct{}

func Example_middleware() {
	tenants := waybill.Middleware{Name: "tenants", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			if tenant, ok := env.Header("tenant"); ok {
				ctx = context.WithValue(ctx, tenantKey{}, tenant)
			}
			return next(ctx, env) // an error is a failure of the message
		}
	}}
	bus := waybill.NewBus("shop", middleware.Recover(), tenants)

	waybill.Handle(bus, "mail", func(ctx context.Context, m SendReceipt) error {
		fmt.Println(m.OrderID, "of", ctx.Value(tenantKey{}))
		return nil
	})
	_, err := bus.Dispatch(context.Background(), SendReceipt{"o-7"}, waybill.Header("tenant", "acme"))
	check(err)
	// Output: o-7 of acme
}

func Example_inboxHandler() {
	ctx := context.Background()
	db, remove := openShop(ctx)
	defer remove()
	bus := waybill.NewBus("shop")

	out, err := outbox.New(db, outbox.Config{To: "mail"})
	check(err)
	inbox.Handle(bus, db, "billing", func(ctx context.Context, tx *sql.Tx, m OrderPlaced) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO invoices VALUES (?, ?)", m.OrderID, m.Cents); err != nil {
			return err
		}
		_, err := out.Dispatch(ctx, tx, SendReceipt{m.OrderID}) // sent if and only if the invoice commits
		return err
	})

	rec := encoded(OrderPlaced{"o-7", 4200})
	for range 2 { // delivered twice
		check(bus.HandleRecord(ctx, rec, "events", 0))
	}
	var invoices int
	check(db.ReadSQL().QueryRowContext(ctx, "SELECT count(*) FROM invoices").Scan(&invoices))
	left, err := db.OutboxStats(ctx)
	check(err)
	fmt.Println(invoices, "invoice,", left[0].Pending, "message for", left[0].Transport)
	// Output: 1 invoice, 1 message for mail
}

func Example_group() {
	ctx := context.Background()
	db, remove := openShop(ctx)
	defer remove()
	bus := waybill.NewBus("shop")
	queue, err := db.Queue("events", waysqlite.QueueConfig{})
	check(err)

	inbox.Handle(bus, db, "billing", func(ctx context.Context, tx *sql.Tx, m OrderPlaced) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO invoices VALUES (?, ?)", m.OrderID, m.Cents)
		return err
	}, inbox.Group(50)) // up to 50 messages share a commit, with a savepoint each
	w, err := worker.New(bus, queue, worker.Config{Concurrency: 50, Idle: time.Millisecond, Inbox: db})

	check(err)
	check(w.Run(ctx))
	// Output:
}

// CustomerOf asks for the customer of an order.
type CustomerOf struct{ OrderID string }

func (CustomerOf) MessageName() string { return "customer.of" }

type Customer struct{ Name string }

func Example_query() {
	ctx, bus := context.Background(), waybill.NewBus("shop")
	waybill.HandleQuery(bus, "customers", func(ctx context.Context, q CustomerOf) (Customer, error) {
		return Customer{"Ada"}, nil
	})
	customer, err := waybill.Query[Customer](ctx, bus, CustomerOf{"o-7"})
	fmt.Println(customer.Name, err)
	// Output: Ada <nil>
}

func Example_batch() {
	ctx, bus, log := context.Background(), waybill.NewBus("shop"), slog.New(slog.DiscardHandler)
	queue := memory.NewDB().Queue("events")
	for _, id := range []string{"o-7", "o-8", "o-9"} {
		check(queue.Send(ctx, encoded(OrderPlaced{id, 4200})))
	}

	waybill.HandleBatch(bus, "search", 100, 200*time.Millisecond, func(ctx context.Context, ms []OrderPlaced) []error {
		fmt.Println(len(ms), "orders indexed in one request")
		return nil // all of them; or an error or nil for each
	})
	w, err := worker.New(bus, queue, worker.Config{Concurrency: 100, Limit: 3, Log: log})

	check(err)
	check(w.Run(ctx))
	// Output: 3 orders indexed in one request
}

func Example_severalHandlers() {
	ctx := context.Background()
	bus := waybill.NewBus("shop")
	full := true

	waybill.Handle(bus, "index", func(ctx context.Context, m OrderPlaced) error {
		fmt.Println("indexed", m.OrderID)
		return nil
	})
	waybill.Handle(bus, "mail", func(ctx context.Context, m OrderPlaced) error {
		if full {
			return errors.New("mailbox is full")
		}
		fmt.Println("mailed", m.OrderID)
		return nil
	})

	rec := encoded(OrderPlaced{"o-7", 4200})
	err := bus.HandleRecord(ctx, rec, "events", 0)
	fmt.Println(err)
	full = false
	// A worker notes on the message the handlers that succeeded.
	if several := (*waybill.HandlersError)(nil); errors.As(err, &several) {
		rec.MarkHandled(several.Succeeded...)
	}
	check(bus.HandleRecord(ctx, rec, "events", 1))
	// Output:
	// indexed o-7
	// mail: mailbox is full
	// mailed o-7
}

func Example_rawHandler() {
	ctx := context.Background()
	bus := waybill.NewBus("shop")

	waybill.HandleRaw(bus, "archive", "order.placed", func(ctx context.Context, m waybill.RawMessage) error {
		fmt.Printf("%s %s\n", m.Name, m.Body)
		return nil
	})

	check(bus.HandleRecord(ctx, encoded(OrderPlaced{"o-7", 4200}), "events", 0))
	// Output: order.placed {"orderId":"o-7","cents":4200}
}
