package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
)

// ChargePayment charges an order.
type ChargePayment struct {
	OrderID int `json:"orderId"`
}

func (ChargePayment) MessageName() string { return "payment.charge" }

func (s *shop) handlePayments(bus *waybill.Bus) { inbox.Handle(bus, s.db, "charge", s.charge) }

// charge writes the payment of an order. A real one would call a payment service, and give
// it the idempotency key of the message.
func (s *shop) charge(ctx context.Context, tx pgx.Tx, m ChargePayment) error {
	done, err := tx.Exec(ctx, "INSERT INTO payments (order_id, cents) SELECT id, cents FROM orders WHERE id = $1", m.OrderID)
	if err == nil && done.RowsAffected() == 0 {
		return waybill.Unrecoverable(errNoOrder)
	}
	return err
}

var (
	errNoOrder = errors.New("there is no such order")
	errNoEmail = errors.New("the order has no email address")
)
