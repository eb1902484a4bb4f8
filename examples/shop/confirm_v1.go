//go:build !v2 && !v2only

package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
)

const version = "v1"

// ConfirmOrder has a confirmation sent, in the only language that there is.
type ConfirmOrder struct {
	OrderID int `json:"orderId"`
}

func (ConfirmOrder) MessageName() string { return "order.confirm" }

func confirmationOf(o Order) any { return ConfirmOrder{o.OrderID} }

func (s *shop) handleConfirmations(bus *waybill.Bus) {
	inbox.Handle(bus, s.db, "confirm", func(ctx context.Context, tx pgx.Tx, m ConfirmOrder) error {
		return s.confirm(ctx, tx, m.OrderID, "en")
	})
}
