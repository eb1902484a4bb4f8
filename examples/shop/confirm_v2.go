//go:build v2 || v2only

package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
)

// ConfirmOrderV2 has a confirmation sent in a language. A build that read it as a ConfirmOrder
// would send the wrong one, hence the new name.
type ConfirmOrderV2 struct {
	OrderID  int    `json:"orderId"`
	Language string `json:"language"`
}

func (ConfirmOrderV2) MessageName() string { return "order.confirm.v2" }

func confirmationOf(o Order) any {
	if o.ShipTo.Country == "Germany" {
		return ConfirmOrderV2{o.OrderID, "de"}
	}
	return ConfirmOrderV2{o.OrderID, "en"}
}

func (s *shop) handleConfirmations(bus *waybill.Bus) {
	inbox.Handle(bus, s.db, "confirm", func(ctx context.Context, tx pgx.Tx, m ConfirmOrderV2) error {
		return s.confirm(ctx, tx, m.OrderID, m.Language)
	})
	readOldConfirmations(bus)
}
