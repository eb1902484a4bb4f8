// Package docs_test runs the Go code of the pages in this directory: each block of a
// page stands in one of these files.
package docs_test

import (
	"context"
	"os"
	"path/filepath"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

// OrderPlaced is a message of the shop in the pages.
type OrderPlaced struct {
	OrderID string `json:"orderId"`
	Cents   int    `json:"cents"`
}

func (OrderPlaced) MessageName() string    { return "order.placed" }
func (m OrderPlaced) PartitionKey() string { return m.OrderID }

// SendReceipt follows an OrderPlaced. It has no key, and so no order.
type SendReceipt struct {
	OrderID string `json:"orderId"`
}

func (SendReceipt) MessageName() string { return "receipt.send" }

// openShop returns an SQLite file with waybill's tables and those of the shop.
func openShop(ctx context.Context) (db *waysqlite.DB, remove func()) {
	dir, err := os.MkdirTemp("", "waybill-docs-")
	check(err)
	db, err = waysqlite.Open(ctx, filepath.Join(dir, "shop.db"), waysqlite.Config{})
	check(err)
	_, err = db.SchemaUp(ctx)
	check(err)
	_, err = db.SQL().ExecContext(ctx, "CREATE TABLE orders (id TEXT, cents INTEGER); CREATE TABLE invoices (order_id TEXT, cents INTEGER)")
	check(err)
	return db, func() {
		check(db.Close())
		check(os.RemoveAll(dir))
	}
}

// shopOutbox returns an outbox without a disk, and its database.
func shopOutbox(cfg outbox.Config) (*outbox.Outbox[*memory.Tx], *memory.DB) {
	db := memory.NewDB()
	out, err := outbox.New(db, cfg)
	check(err)
	return out, db
}

// dispatch dispatches msg in a unit of work.
func dispatch(ctx context.Context, out *outbox.Outbox[*memory.Tx], msg any, stamps ...waybill.Stamp) {
	check(out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
		_, err := tx.Dispatch(ctx, msg, stamps...)
		return err
	}))
}

// work handles n messages of a queue.
func work(ctx context.Context, bus *waybill.Bus, from waybill.Receiver, n int) {
	w, err := worker.New(bus, from, worker.Config{Transport: "events", Limit: n})
	check(err)
	check(w.Run(ctx))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// encoded returns msg as a record with a new id, as a transport delivers it.
func encoded(msg any, stamps ...waybill.Stamp) *waybill.Record {
	id, err := waybill.NewMessageID()
	check(err)
	s := waybill.Serializer{}
	rec, err := s.Encode(waybill.NewEnvelope(msg, stamps...).With(id))
	check(err)
	return rec
}
