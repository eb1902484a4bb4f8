package waysqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

type orderPlaced struct {
	OrderID string `json:"orderId"`
	Cents   int    `json:"cents"`
}

func (orderPlaced) MessageName() string    { return "order.placed" }
func (m orderPlaced) PartitionKey() string { return m.OrderID }

func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "waybill-example-")
	check(err)
	defer os.RemoveAll(dir)
	db, err := waysqlite.Open(ctx, filepath.Join(dir, "shop.db"), waysqlite.Config{})
	check(err)
	defer db.Close()
	_, err = db.SchemaUp(ctx)
	check(err)

	out, err := outbox.New(db, outbox.Config{To: "events"})
	check(err)
	check(out.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
		_, err := tx.Dispatch(ctx, orderPlaced{"o-7", 4200})
		return err
	}))
	stats, err := db.OutboxStats(ctx)
	check(err)
	fmt.Println(stats[0].Transport, stats[0].Pending)
	// Output: events 1
}

// A transaction of the application's own dispatches last.
func ExampleDB_SQL() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "waybill-example-")
	check(err)
	defer os.RemoveAll(dir)
	db, err := waysqlite.Open(ctx, filepath.Join(dir, "shop.db"), waysqlite.Config{})
	check(err)
	defer db.Close()
	_, err = db.SchemaUp(ctx)
	check(err)
	out, err := outbox.New(db, outbox.Config{To: "mail", Queues: map[string]string{"mail": "mail"}}) // a queue of the same file
	check(err)

	var tx *sql.Tx
	tx, err = db.SQL().BeginTx(ctx, nil)
	check(err)
	defer tx.Rollback()
	_, err = out.Dispatch(ctx, tx, orderPlaced{"o-7", 4200})
	check(err)
	check(tx.Commit())

	stats, err := db.QueueStats(ctx)
	check(err)
	fmt.Println(stats[0].Queue, stats[0].Pending)
	// Output: mail 1
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
