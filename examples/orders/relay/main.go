// Relay moves the committed messages of the order service to the broker. `waybill
// relay` does the same without a program of yours.
package main

import (
	"context"
	"flag"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/waybill-go/waybill/examples/orders/stack"
	"github.com/waybill-go/waybill/outbox"
)

func main() {
	database := flag.String("database", "sqlite://./orders.db", "the order service's `DSN`, sqlite, postgres or mysql")
	broker := flag.String("broker", "sqlite://./broker.db", "the broker's `DSN`, sqlite or amqp")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *database, *broker); err != nil {
		log.Fatal("relay: ", err)
	}
}

func run(ctx context.Context, database, broker string) error {
	db, err := stack.OpenDatabase(ctx, database)
	if err != nil {
		return err
	}
	defer db.Close()
	to, err := stack.OpenPublisher(ctx, broker)
	if err != nil {
		return err
	}
	defer to.Close()
	// Start as many as you like. On SQLite one relays and the others stand by.
	relay, err := outbox.NewRelay(db, to, outbox.RelayConfig{Transport: "events", Standby: true, Log: slog.Default()})
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}
