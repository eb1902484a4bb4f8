package main

import (
	"context"
	"errors"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/waycli"
)

// The messages of the binaries newcart, whose handler takes the third version alone, and
// cart, which reads the older ones too.
type (
	cartPaid struct {
		Cents int `json:"cents"`
	}
	cartPaidV2 struct {
		Cents int    `json:"cents"`
		Card  string `json:"card"`
	}
	cartPaidV3 struct {
		Amount int    `json:"amount"`
		Card   string `json:"card"`
	}
)

func (cartPaid) MessageName() string   { return "cart.paid.v1" }
func (cartPaidV2) MessageName() string { return "cart.paid.v2" }
func (cartPaidV3) MessageName() string { return "cart.paid.v3" }

func newCartBus(context.Context, *waycli.Service) (*waybill.Bus, error) {
	bus := waybill.NewBus("cart")
	waybill.Handle(bus, "charge", func(context.Context, cartPaidV3) error { return nil })
	return bus, nil
}

func cartBus(ctx context.Context, s *waycli.Service) (*waybill.Bus, error) {
	bus, err := newCartBus(ctx, s)
	waybill.Upcast(bus, func(m cartPaid) (cartPaidV2, error) { return cartPaidV2{m.Cents, "unknown"}, nil })
	waybill.Upcast(bus, func(m cartPaidV2) (cartPaidV3, error) {
		switch {
		case m.Cents < 0:
			return cartPaidV3{}, errors.New("refund of " + m.Card) // quotes the body
		case m.Card == "":
			panic("no card") // quotes nothing, but might
		}
		return cartPaidV3{m.Cents, m.Card}, nil
	})
	return bus, err
}
