package waycli

import (
	"context"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
)

func TestRoutesAreResolvedAsThoseToTransportsAre(t *testing.T) {
	route := routesOf(map[string]config.Route{
		"order.*": {Exchange: "orders"}, "order.line.*": {RoutingKey: "line"}, "order.placed": {Exchange: "placed", RoutingKey: "p"},
	})
	for name, want := range map[string][2]string{
		"order.placed": {"placed", "p"}, "order.paid": {"orders", ""}, "order.line.added": {"", "line"}, "mail.sent": {}, "order": {},
	} {
		if r := route(name); r.Exchange != want[0] || r.RoutingKey != want[1] {
			t.Errorf("%s goes to %q, %q, want %q", name, r.Exchange, r.RoutingKey, want)
		}
	}
}

func TestPolicyIsThatOfTheRouteOrElseOfAll(t *testing.T) {
	policy := policies(config.Outbox{OnExhausted: config.Skip, Routes: map[string]config.Route{
		"order.*": {OnExhausted: config.Park}, "order.placed": {Exchange: "placed"}, "mail.sent": {OnExhausted: config.Block},
	}})
	for name, want := range map[string]outbox.Policy{"order.paid": outbox.Park, "order.placed": outbox.Skip, "mail.sent": outbox.Block, "other": outbox.Skip} {
		if got := policy(name); got != want {
			t.Errorf("policy of %s = %q, want %q", name, got, want)
		}
	}
}

type keyed struct{ ID string }

func (keyed) MessageName() string    { return "keyed" }
func (k keyed) PartitionKey() string { return k.ID }

func TestKeyOfARecordIsThatOfItsType(t *testing.T) {
	bus := waybill.NewBus("b")
	waybill.Handle(bus, "h", func(_ context.Context, _ keyed) error { return nil })
	key := keyOf(bus)
	for body, want := range map[string]string{`{"ID":"k"}`: "k", `not JSON`: ""} {
		if got := key(&waybill.Record{Name: "keyed", Body: []byte(body)}); got != want {
			t.Errorf("key of %s = %q, want %q", body, got, want)
		}
	}
	if got := key(&waybill.Record{Name: "unknown", Body: []byte("{}")}); got != "" {
		t.Errorf("key of an unknown message = %q, want none", got)
	}
}
