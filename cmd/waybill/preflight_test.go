package main

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/waycli"
)

// The messages of the binary next, a later build of shop, which reads no order with a text
// for its number.
type (
	nextOrder struct {
		Order int `json:"orderId"`
	}
	nextMail struct {
		At   time.Time `json:"at"`
		Card card      `json:"card"`
	}
	nextInvoice struct {
		Cents int8 `json:"cents"`
	}
)

func (nextOrder) MessageName() string   { return "order.placed" }
func (nextMail) MessageName() string    { return "mail.sent" }
func (nextInvoice) MessageName() string { return "invoice.sent" }

// A card has an error that quotes its body.
type card string

func (c *card) UnmarshalJSON(text []byte) error {
	if len(text) > 2 {
		return errors.New("no card: " + string(text))
	}
	return nil
}

func nextBus(context.Context, *waycli.Service) (*waybill.Bus, error) {
	bus := waybill.NewBus("next")
	waybill.Handle(bus, "bill", func(context.Context, nextOrder) error { return nil })
	waybill.Handle(bus, "mail", func(context.Context, nextMail) error { return nil })
	waybill.HandleRaw(bus, "old", "order.old", func(context.Context, waybill.RawMessage) error { return nil })
	waybill.Register[nextInvoice](bus.Types(), "")
	bus.Types().Alias("shop.order", "order.placed")
	bus.Types().Alias("shop.mail", "mail.sent")
	return bus, nil
}
