// Billing receives the order service's messages and writes invoices and
// shipments. However often a message arrives, each of its effects happens once:
// the handler's writes and the memory of the message are one transaction.
//
//	WAYBILL_DATABASE  the service's database (billing.db)
//	WAYBILL_BROKER    the broker's file (broker.db)
package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
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
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/middleware"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal("billing: ", err)
	}
}

// No constraint keeps an order from being invoiced twice. The inbox does.
const tables = `
CREATE TABLE IF NOT EXISTS invoices (
	number   INTEGER PRIMARY KEY AUTOINCREMENT,
	order_id INTEGER NOT NULL,
	cents    INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS invoices_by_order ON invoices (order_id);
CREATE TABLE IF NOT EXISTS shipments (
	invoice    INTEGER NOT NULL REFERENCES invoices (number),
	shipped_at TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS ledger (
	entry    INTEGER PRIMARY KEY AUTOINCREMENT,
	customer TEXT NOT NULL,
	event    TEXT NOT NULL,
	order_id INTEGER NOT NULL,
	body     TEXT NOT NULL
);`

func run(ctx context.Context) error {
	db, err := waysqlite.Open(cmp.Or(os.Getenv("WAYBILL_DATABASE"), "billing.db"), waysqlite.Config{})
	if err != nil {
		return err
	}
	defer db.Close()
	broker, err := waysqlite.Open(cmp.Or(os.Getenv("WAYBILL_BROKER"), "broker.db"), waysqlite.Config{})
	if err != nil {
		return err
	}
	defer broker.Close()
	for _, each := range []*waysqlite.DB{db, broker} {
		if _, err := each.SchemaUp(ctx); err != nil { // in production: `waybill schema up`, when deploying
			return err
		}
	}
	if _, err := db.SQL().ExecContext(ctx, tables); err != nil {
		return err
	}
	var seen counter
	bus := waybill.NewBus("billing", middleware.Recover(), middleware.Timeout(time.Minute))
	inbox.Handle(bus, db, "invoice", invoice, inbox.Option{Observer: &seen})
	inbox.Handle(bus, db, "ship", ship, inbox.Option{Observer: &seen})

	queue, err := broker.Queue("events", waysqlite.QueueConfig{})
	if err != nil {
		return err
	}
	w, err := worker.New(bus, queue, worker.Config{Transport: "events", Log: slog.Default(), Observer: &seen})
	if err != nil {
		return err
	}
	err = w.Run(ctx)
	fmt.Printf("handled %d messages, %d of them duplicates\n", seen.handled.Load(), seen.duplicates.Load())
	return err
}

func invoice(ctx context.Context, tx *sql.Tx, m events.OrderPlaced) error {
	total := m.Freight
	for _, line := range m.Lines {
		total += line.UnitPrice * float64(line.Quantity) * (1 - line.Discount)
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO invoices (order_id, cents) VALUES (?, ?)", m.OrderID, math.Round(100*total)); err != nil {
		return err
	}
	return enter(ctx, tx, m.CustomerID, "order.placed", m.OrderID, m)
}

// ship relies on the order of a customer's messages: the invoice is there.
func ship(ctx context.Context, tx *sql.Tx, m events.OrderShipped) error {
	result, err := tx.ExecContext(ctx, "INSERT INTO shipments (invoice, shipped_at) SELECT number, ? FROM invoices WHERE order_id = ?", m.ShippedAt.Format(time.RFC3339), m.OrderID)
	if err != nil {
		return err
	}
	if rows, err := result.RowsAffected(); err != nil {
		return err
	} else if rows != 1 {
		return fmt.Errorf("order %d has %d invoices, want 1", m.OrderID, rows)
	}
	return enter(ctx, tx, m.CustomerID, "order.shipped", m.OrderID, m)
}

// enter writes down what came, in the order in which it came.
func enter(ctx context.Context, tx *sql.Tx, customer, event string, order int, m any) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO ledger (customer, event, order_id, body) VALUES (?, ?, ?, ?)", customer, event, order, string(body))
	return err
}

// counter counts what the worker handles and what the inbox keeps from
// happening twice.
type counter struct{ handled, duplicates atomic.Int64 }

func (c *counter) Observe(_ context.Context, e waybill.Event) {
	switch {
	case e.Kind == waybill.Handled && e.Err == nil:
		c.handled.Add(1)
	case e.Kind == waybill.Duplicate:
		c.duplicates.Add(1)
	}
}
