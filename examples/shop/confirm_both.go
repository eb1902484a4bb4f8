//go:build v2

package main

import "github.com/waybill-go/waybill"

const version = "v2"

// ConfirmOrder is the message of the build before. It may go when preflight says that
// order.confirm is drained.
type ConfirmOrder struct {
	OrderID int `json:"orderId"`
}

func (ConfirmOrder) MessageName() string { return "order.confirm" }

func readOldConfirmations(bus *waybill.Bus) {
	waybill.Upcast(bus, func(old ConfirmOrder) (ConfirmOrderV2, error) { return ConfirmOrderV2{old.OrderID, "en"}, nil })
}
