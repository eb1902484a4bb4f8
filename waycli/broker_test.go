package waycli

import (
	"context"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
)

func TestRoutesAreResolvedAsThoseToTransportsAre(t *testing.T) {
	route := routesOf(map[string]config.Route{
		"order.*": {Exchange: "orders"}, "order.line.*": {RoutingKey: "line"}, "order.placed": {Exchange: "placed", RoutingKey: "p"},
	})
	for name, want := range map[string][2]string{
		"order.placed": {"placed", "p"}, "order.paid": {"orders", ""}, "order.line.added": {"", "line"}, "mail.sent": {}, "order": {},
	} {
		if exchange, key := route(name); exchange != want[0] || key != want[1] {
			t.Errorf("%s goes to %q, %q, want %q", name, exchange, key, want)
		}
	}
}

type keyed struct{ ID string }

func (keyed) MessageName() string { return "keyed" }
func (k keyed) PartitionKey() string {
	if k.ID == "panic" {
		panic("no key")
	}
	return k.ID
}

func TestKeyOfARecordIsThatOfItsType(t *testing.T) {
	bus := waybill.NewBus("b")
	waybill.Handle(bus, "h", func(_ context.Context, _ keyed) error { return nil })
	key := keyOf(bus)
	for body, want := range map[string]string{`{"ID":"k"}`: "k", `{"ID":"panic"}`: "", `not JSON`: ""} {
		if got := key(&waybill.Record{Name: "keyed", Body: []byte(body)}); got != want {
			t.Errorf("key of %s = %q, want %q", body, got, want)
		}
	}
	if got := key(&waybill.Record{Name: "unknown", Body: []byte("{}")}); got != "" {
		t.Errorf("key of an unknown message = %q, want none", got)
	}
}
