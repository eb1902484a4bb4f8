// Orderservice takes business events from a file, one JSON object a line. For
// each it writes a row and dispatches a message, both or neither.
package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/examples/orders/events"
	"github.com/waybill-go/waybill/examples/orders/stack"
	"github.com/waybill-go/waybill/outbox"
)

func main() {
	database := flag.String("database", "sqlite://./orders.db", "the service's `DSN`, sqlite, postgres or mysql")
	file := flag.String("orders", "testdata/orders.jsonl", "the `file` with the events")
	pause := flag.Duration("pause", 10*time.Millisecond, "the time between two events")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *database, *file, *pause); err != nil {
		log.Fatal("orderservice: ", err)
	}
}

var tables = []string{
	`CREATE TABLE IF NOT EXISTS orders (
		id        INTEGER PRIMARY KEY,
		customer  VARCHAR(64) NOT NULL,
		placed_at VARCHAR(40) NOT NULL
	)`,
	`CREATE TABLE IF NOT EXISTS shipments (
		order_id   INTEGER PRIMARY KEY REFERENCES orders (id),
		shipped_at VARCHAR(40) NOT NULL
	)`,
}

func run(ctx context.Context, database, file string, pause time.Duration) error {
	db, err := stack.OpenDatabase(ctx, database)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.CreateTables(ctx, tables...); err != nil {
		return err
	}
	out, err := outbox.New(db, outbox.Config{To: "events"})
	if err != nil {
		return err
	}
	orders, err := os.Open(file)
	if err != nil {
		return err
	}
	defer orders.Close()
	n := 0
	for lines := json.NewDecoder(orders); ; n++ {
		var e event
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("event %d: %w", n+1, err)
		}
		if err := e.take(ctx, service{out, db.SQL}); err != nil {
			return fmt.Errorf("event %d, %s of %s: %w", n+1, e.Name, e.Key, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
	fmt.Printf("%d events recorded and dispatched\n", n)
	return nil
}

// An event is one line of the file.
type event struct {
	Name string          `json:"name"`
	Key  string          `json:"key"`
	Body json.RawMessage `json:"body"`
}

func (e event) take(ctx context.Context, s service) error {
	switch e.Name {
	case "order.placed":
		m, err := decode[events.OrderPlaced](e)
		if err != nil {
			return err
		}
		return s.record(ctx, m, "SELECT count(*) FROM orders WHERE id = ?", "INSERT INTO orders (id, customer, placed_at) VALUES (?, ?, ?)",
			m.OrderID, m.CustomerID, m.PlacedAt.Format(time.RFC3339))
	case "order.shipped":
		m, err := decode[events.OrderShipped](e)
		if err != nil {
			return err
		}
		return s.record(ctx, m, "SELECT count(*) FROM shipments WHERE order_id = ?", "INSERT INTO shipments (order_id, shipped_at) VALUES (?, ?)",
			m.OrderID, m.ShippedAt.Format(time.RFC3339))
	}
	return errors.New("no such event")
}

// decode refuses fields that M does not have, and a key other than the event's.
func decode[M waybill.Keyed](e event) (m M, err error) {
	body := json.NewDecoder(bytes.NewReader(e.Body))
	body.DisallowUnknownFields()
	if err := body.Decode(&m); err != nil {
		return m, err
	}
	if m.PartitionKey() != e.Key {
		return m, fmt.Errorf("the body is of customer %q", m.PartitionKey())
	}
	return m, nil
}

// A service records the events of orders.
type service struct {
	out *outbox.Outbox[*sql.Tx]
	sql func(statement string) string // as the database has it
}

// record inserts a row and dispatches m, both or neither. A row that is known
// says that an earlier run has done it; its first argument is its key.
func (s service) record(ctx context.Context, m any, known, insert string, args ...any) error {
	return s.out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*sql.Tx]) error {
		var rows int
		if err := tx.SQL().QueryRowContext(ctx, s.sql(known), args[0]).Scan(&rows); err != nil || rows > 0 {
			return err
		}
		if _, err := tx.SQL().ExecContext(ctx, s.sql(insert), args...); err != nil {
			return err
		}
		_, err := tx.Dispatch(ctx, m)
		return err
	})
}
