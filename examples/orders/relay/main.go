// Relay moves what the order service has committed to the broker, which here
// is a queue in a SQLite file of its own. `waybill relay` does the same without
// a program of yours.
//
//	WAYBILL_DATABASE  the order service's database (orders.db)
//	WAYBILL_BROKER    the broker's file (broker.db)
package main

import (
	"cmp"
	"context"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal("relay: ", err)
	}
}

func run(ctx context.Context) error {
	db, err := waysqlite.Open(cmp.Or(os.Getenv("WAYBILL_DATABASE"), "orders.db"), waysqlite.Config{})
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
	queue, err := broker.Queue("events", waysqlite.QueueConfig{})
	if err != nil {
		return err
	}
	// Start as many as you like: one relays, the others stand by.
	relay, err := outbox.NewRelay(db, queue, outbox.RelayConfig{Transport: "events", Standby: true, Log: slog.Default()})
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}
