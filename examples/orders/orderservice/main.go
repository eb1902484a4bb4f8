// Orderservice takes business events from a file, one JSON object a line. For
// each it writes a row and dispatches a message, both or neither.
//
//	WAYBILL_ORDERS    the file (testdata/orders.jsonl)
//	WAYBILL_DATABASE  the service's database (orders.db)
//	WAYBILL_PAUSE     the time between two events (10ms)
package main

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/examples/orders/events"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal("orderservice: ", err)
	}
}

const tables = `
CREATE TABLE IF NOT EXISTS orders (
	id        INTEGER PRIMARY KEY,
	customer  TEXT NOT NULL,
	placed_at TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS shipments (
	order_id   INTEGER PRIMARY KEY REFERENCES orders (id),
	shipped_at TEXT NOT NULL
);`

func run(ctx context.Context) error {
	db, err := waysqlite.Open(cmp.Or(os.Getenv("WAYBILL_DATABASE"), "orders.db"), waysqlite.Config{})
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.SchemaUp(ctx); err != nil { // in production: `waybill schema up`, when deploying
		return err
	}
	if _, err := db.SQL().ExecContext(ctx, tables); err != nil {
		return err
	}
	out, err := outbox.New(db, outbox.Config{To: "events"})
	if err != nil {
		return err
	}
	pause, err := time.ParseDuration(cmp.Or(os.Getenv("WAYBILL_PAUSE"), "10ms"))
	if err != nil {
		return fmt.Errorf("WAYBILL_PAUSE: %w", err)
	}
	file, err := os.Open(cmp.Or(os.Getenv("WAYBILL_ORDERS"), "testdata/orders.jsonl"))
	if err != nil {
		return err
	}
	defer file.Close()
	n := 0
	for lines := json.NewDecoder(file); ; n++ {
		var e event
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("event %d: %w", n+1, err)
		}
		if err := e.take(ctx, out); err != nil {
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

func (e event) take(ctx context.Context, out *outbox.Outbox[*sql.Tx]) error {
	switch e.Name {
	case "order.placed":
		m, err := decode[events.OrderPlaced](e)
		if err != nil {
			return err
		}
		return record(ctx, out, m, "INSERT INTO orders (id, customer, placed_at) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING",
			m.OrderID, m.CustomerID, m.PlacedAt.Format(time.RFC3339))
	case "order.shipped":
		m, err := decode[events.OrderShipped](e)
		if err != nil {
			return err
		}
		return record(ctx, out, m, "INSERT INTO shipments (order_id, shipped_at) VALUES (?, ?) ON CONFLICT (order_id) DO NOTHING",
			m.OrderID, m.ShippedAt.Format(time.RFC3339))
	}
	return errors.New("no such event")
}

// decode refuses what the message could not carry on.
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

// record inserts a row and dispatches m, both or neither. A row that is there
// says that an earlier run has done it.
func record(ctx context.Context, out *outbox.Outbox[*sql.Tx], m any, insert string, args ...any) error {
	return out.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
		result, err := tx.SQL().ExecContext(ctx, insert, args...)
		if err != nil {
			return err
		}
		if rows, err := result.RowsAffected(); err != nil || rows == 0 {
			return err
		}
		_, err = tx.Dispatch(ctx, m)
		return err
	})
}
