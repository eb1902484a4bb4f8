package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/waycli"
)

// availability and confirmation are the messages of the binary catalog, without keys.
type availability struct {
	SKU string `json:"sku"`
	N   int    `json:"n,omitempty"`
}

func (availability) MessageName() string { return "product.availability" }

type confirmation struct {
	Order int `json:"order"`
}

func (confirmation) MessageName() string { return "order.confirm" }

// begun is the time of the first attempt of this process.
var begun = sync.OnceValue(time.Now)

// catalogBus handles with a warehouse that is down for 1.2 s and limits its rate for 6 s: a
// fiftieth of a minute and of five.
func catalogBus(context.Context, *waycli.Service) (*waybill.Bus, error) {
	bus := waybill.NewBus("catalog")
	waybill.Handle(bus, "sync", func(_ context.Context, m availability) error {
		return warehouse(m, time.Since(begun()))
	})
	waybill.Handle(bus, "mail", func(_ context.Context, m confirmation) error {
		if m.Order == 13 {
			return waybill.Unrecoverable(errors.New("the order has no customer"))
		}
		return nil
	})
	return bus, nil
}

var errSKU = errors.New("no such SKU")

func warehouse(m availability, since time.Duration) error {
	const limited = 6 * time.Second
	kind, rest, _ := strings.Cut(m.SKU, "-")
	switch {
	case kind == "down" && since < 1200*time.Millisecond:
		return errors.New("dial tcp: connection refused")
	case kind == "limited" && since < limited:
		return waybill.RetryAfter(errors.New("429 Too Many Requests"), limited-since)
	case kind == "gone":
		return waybill.Unrecoverable(fmt.Errorf("%w: %s", errSKU, rest))
	}
	return nil
}
