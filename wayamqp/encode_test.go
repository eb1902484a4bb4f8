package wayamqp

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// Headers cost the broker more than properties: no header repeats a property, and a
// header of an outbox row with the name of such a field is dropped.
func TestNoHeaderRepeatsAProperty(t *testing.T) {
	id, err := waybill.ParseMessageID("0199a5c3-1234-7abc-8def-0123456789ab")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	rec := &waybill.Record{ID: id, Name: "order.placed", Key: "customer-7", Body: []byte("{}"), DispatchedAt: at, Headers: map[string]string{
		"tenant": "acme", waybill.HeaderCorrelationID: "c", waybill.HeaderCausationID: "d",
		"type": "forged", "x-message-id": "forged", "x-attempt": "9", "x-dispatched-at": "forged", "x-partition-key": "forged", "content-type": "forged", "x-publish-no": "1", "x-handled-by": "forged",
	}}
	want := amqp.Publishing{
		Headers: amqp.Table{"tenant": "acme", "x-causation-id": "d"}, ContentType: "application/json", DeliveryMode: amqp.Persistent,
		CorrelationId: "c", MessageId: id.String(), Timestamp: at.Truncate(time.Second), Type: "order.placed", Body: []byte("{}"),
	}
	got, err := new(Config).encode(amqp.Table{}, rec, "events", "order.placed", 0)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	want.Headers["x-partition-key"] = "customer-7"
	got, err = (&Config{KeyHeader: true}).encode(amqp.Table{}, rec, "events", "order.placed", 0)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("with KeyHeader: %v (-want +got):\n%s", err, diff)
	}
}
