package waytest

import (
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
)

// Headers runs the case of functions in the database that dispatch: dispatch, which calls one with a
// header, refuses what Dispatch refuses. The four headers that stamps of Go set are headers there.
func Headers(t *testing.T, dispatch func(name, value string) error) {
	types := waybill.NewTypes()
	types.AllowRaw("order.placed")
	serializer := waybill.Serializer{Types: types}
	check := func(name, value string) {
		t.Helper()
		stamp := waybill.Header(name, value)
		switch name {
		case waybill.HeaderCorrelationID:
			stamp = waybill.CorrelationID(value)
		case waybill.HeaderCausationID:
			stamp = waybill.CausationID(value)
		case waybill.HeaderIdempotencyKey:
			stamp = waybill.IdempotencyKey(value)
		}
		msg := waybill.RawMessage{Name: "order.placed", Body: []byte("{}")}
		if name == "content-type" {
			msg.ContentType, stamp = value, waybill.PartitionKey("k")
		}
		_, err := serializer.Encode(waybill.NewEnvelope(msg, newID(t), stamp))
		if got := dispatch(name, value); (got == nil) != (err == nil) {
			t.Errorf("header %.40q of %.20q: %v, Dispatch says %v", name, value, got, err)
		}
	}
	for c := range 128 {
		check("a"+string(rune(c)), "x")
		check("a", "x"+string(rune(c)))
	}
	for _, name := range []string{
		"", "ä", "tenant", "X-Tenant", "traceparent", "x-death-row", "types", "x-attempts", "acc", strings.Repeat("x", 255), strings.Repeat("x", 256),
		"content-type", "type", "user_id", "expiration", "cc", "bcc", "x-death", "x-delivery-count", "x-acquired-count", "x-first-death-queue", "x-last-death-",
		"x-message-id", "x-attempt", "x-partition-key", "x-publish-no", "x-dispatched-at", waybill.HeaderHandledBy,
		waybill.HeaderCorrelationID, waybill.HeaderCausationID, waybill.HeaderIdempotencyKey,
	} {
		check(name, "x")
		check(name, strings.Repeat("x", 255))
		check(name, strings.Repeat("ä", 128))
		check(strings.ToUpper(name), "ä €")
	}
	check("tenant", "")
	check("tenant", "\u0085 and \u2028")
}
