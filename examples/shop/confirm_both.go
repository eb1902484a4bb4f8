//go:build v2

package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
)

const version = "v2"

// ConfirmOrder is the message of the build before. It may go when preflight says that
// order.confirm is drained.
type ConfirmOrder struct {
	OrderID int `json:"orderId"`
}

func (ConfirmOrder) MessageName() string { return "order.confirm" }

// handleOldConfirmations uses the name of the handler for the new ones: both have one inbox.
func (s *shop) handleOldConfirmations(bus *waybill.Bus) {
	inbox.Handle(bus, s.db, "confirm", func(ctx context.Context, tx pgx.Tx, old ConfirmOrder) error {
		return s.confirm(ctx, tx, old.OrderID, "en")
	})
}
