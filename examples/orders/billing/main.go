// Billing receives the order service's messages and writes invoices and
// shipments. However often a message arrives, each of its effects happens once:
// the handler's writes and the memory of the message are one transaction.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/examples/orders/events"
	"github.com/waybill-go/waybill/examples/orders/stack"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/middleware"
	"github.com/waybill-go/waybill/worker"
)

func main() {
	database := flag.String("database", "sqlite://./billing.db", "the service's `DSN`, sqlite, postgres or mysql")
	broker := flag.String("broker", "sqlite://./broker.db", "the broker's `DSN`, sqlite or amqp")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *database, *broker); err != nil {
		log.Fatal("billing: ", err)
	}
}

// No constraint keeps an order from being invoiced twice, as each message is a new
// entry. The inbox does.
var tables = []string{
	`CREATE TABLE IF NOT EXISTS ledger (
		customer VARCHAR(64) NOT NULL,
		entry    INTEGER NOT NULL,
		event    VARCHAR(64) NOT NULL,
		order_id INTEGER NOT NULL,
		body     TEXT NOT NULL,
		PRIMARY KEY (customer, entry)
	)`,
	`CREATE TABLE IF NOT EXISTS invoices (
		order_id INTEGER NOT NULL,
		entry    INTEGER NOT NULL,
		cents    INTEGER NOT NULL,
		PRIMARY KEY (order_id, entry)
	)`,
	`CREATE TABLE IF NOT EXISTS shipments (
		order_id   INTEGER NOT NULL,
		entry      INTEGER NOT NULL,
		shipped_at VARCHAR(40) NOT NULL,
		PRIMARY KEY (order_id, entry)
	)`,
}

func run(ctx context.Context, database, broker string) error {
	db, err := stack.OpenDatabase(ctx, database)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.CreateTables(ctx, tables...); err != nil {
		return err
	}
	var seen counter
	bus := waybill.NewBus("billing", middleware.Recover(), middleware.Timeout(time.Minute))
	books := books{sql: db.SQL}
	inbox.Handle(bus, db, "invoice", books.invoice)
	inbox.Handle(bus, db, "ship", books.ship)

	from, err := stack.OpenReceiver(ctx, broker)
	if err != nil {
		return err
	}
	defer from.Close()
	w, err := worker.New(bus, from, worker.Config{Transport: "events", Inbox: db, Log: slog.Default(), Observer: &seen})
	if err != nil {
		return err
	}
	err = w.Run(ctx)
	fmt.Printf("handled %d messages, %d of them duplicates\n", seen.handled.Load(), seen.duplicates.Load())
	return err
}

// books are the tables of billing.
type books struct {
	sql func(statement string) string // as the database has it
}

func (b books) invoice(ctx context.Context, tx *sql.Tx, m events.OrderPlaced) error {
	entry, err := b.enter(ctx, tx, m.CustomerID, "order.placed", m.OrderID, m)
	if err != nil {
		return err
	}
	total := m.Freight
	for _, line := range m.Lines {
		total += line.UnitPrice * float64(line.Quantity) * (1 - line.Discount)
	}
	_, err = tx.ExecContext(ctx, b.sql("INSERT INTO invoices (order_id, entry, cents) VALUES (?, ?, ?)"), m.OrderID, entry, int(math.Round(100*total)))
	return err
}

// ship relies on the order of a customer's messages: the invoice is there.
func (b books) ship(ctx context.Context, tx *sql.Tx, m events.OrderShipped) error {
	var invoices int
	if err := tx.QueryRowContext(ctx, b.sql("SELECT count(*) FROM invoices WHERE order_id = ?"), m.OrderID).Scan(&invoices); err != nil {
		return err
	}
	if invoices != 1 {
		return fmt.Errorf("order %d has %d invoices, want 1", m.OrderID, invoices)
	}
	entry, err := b.enter(ctx, tx, m.CustomerID, "order.shipped", m.OrderID, m)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, b.sql("INSERT INTO shipments (order_id, entry, shipped_at) VALUES (?, ?, ?)"), m.OrderID, entry, m.ShippedAt.Format(time.RFC3339))
	return err
}

// enter records a message as the customer's next entry. It may count the entries,
// because a customer's messages are handled one after the other.
func (b books) enter(ctx context.Context, tx *sql.Tx, customer, event string, order int, m any) (entry int, err error) {
	body, err := json.Marshal(m)
	if err != nil {
		return 0, err
	}
	if err := tx.QueryRowContext(ctx, b.sql("SELECT count(*) + 1 FROM ledger WHERE customer = ?"), customer).Scan(&entry); err != nil {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, b.sql("INSERT INTO ledger (customer, entry, event, order_id, body) VALUES (?, ?, ?, ?, ?)"), customer, entry, event, order, string(body))
	return entry, err
}

// counter counts the messages that the worker handles and the duplicates that the
// inbox suppresses.
type counter struct{ handled, duplicates atomic.Int64 }

func (c *counter) Observe(_ context.Context, e waybill.Event) {
	switch {
	case e.Kind == waybill.Handled && e.Err == nil:
		c.handled.Add(1)
	case e.Kind == waybill.Duplicate:
		c.duplicates.Add(1)
	}
}
