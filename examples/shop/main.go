// Command shop is a service with two transports: a catalog, fed by a warehouse, and
// orders, which never wait for the catalog. One file, waybill.yaml, says where they lie,
// how often they are tried and where each keeps its dead letters.
package main

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/middleware"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waycli/postgres"
	"github.com/waybill-go/waybill/waycli/rabbitmq"
	"github.com/waybill-go/waybill/waypg"
)

func main() {
	waycli.Execute(waycli.App{
		Name: "shop", Version: version, Bus: newShop,
		Databases: map[string]waycli.Driver{"postgres": postgres.Driver()},
		Brokers:   map[string]waycli.Broker{"amqp": rabbitmq.Broker(), "amqps": rabbitmq.Broker()},
	})
}

// shop is shared by the parts of the service.
type shop struct {
	db  *waypg.DB
	out *outbox.Outbox[pgx.Tx]
}

//go:embed schema.sql
var schema string

// newShop returns the handlers of the service, to which it adds its HTTP server.
func newShop(ctx context.Context, svc *waycli.Service) (*waybill.Bus, error) {
	db, err := postgres.DB(ctx, svc)
	if err != nil {
		return nil, err
	}
	cfg, err := svc.Outbox()
	if err != nil {
		return nil, err
	}
	out, err := outbox.New(db, cfg)
	if err != nil {
		return nil, err
	}
	if err := createTables(ctx, db); err != nil {
		return nil, err
	}
	s := &shop{db, out}
	svc.Serve("http", s.server())

	bus := waybill.NewBus("shop", middleware.Recover(), middleware.Log(svc.Log()))
	s.handleCatalog(bus)
	s.handlePayments(bus)
	s.handleConfirmations(bus)
	return bus, nil
}

// createTables creates the tables of the shop. The lock keeps processes that start at once
// from creating the same table.
func createTables(ctx context.Context, db *waypg.DB) error {
	err := db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(70001)"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, schema)
		return err
	})
	if err != nil {
		return fmt.Errorf("tables of the shop: %w", err)
	}
	return nil
}
