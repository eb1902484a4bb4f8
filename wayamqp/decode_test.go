package wayamqp

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

var arrival = time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)

func TestForeignHeadersBecomeText(t *testing.T) {
	rec, failures := new(Config).decode(&amqp.Delivery{
		MessageId: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Type: "of.the.property", CorrelationId: "conversation", Body: []byte("{}"),
		Headers: amqp.Table{
			"type": "order.placed", "x-attempt": int32(3), "x-publish-no": "17", "x-partition-key": []byte("k"), "x-handled-by": "billing",
			"text": "t", "bytes": []byte("b"), "binary": []byte{0xff}, "yes": true, "int": int64(-5), "byte": byte(7), "float": 1.5,
			"decimal": amqp.Decimal{Scale: 2, Value: 314}, "time": arrival, "nothing": nil,
			"x-death": []any{amqp.Table{"count": 1}}, "table": amqp.Table{"a": "b"}, "x-first-death-queue": "q", "x-delivery-count": int64(2),
		},
	}, arrival)
	if rec.Problem != nil {
		t.Fatal(rec.Problem)
	}
	want := map[string]string{
		"text": "t", "bytes": "b", "yes": "true", "int": "-5", "byte": "7", "float": "1.5", "decimal": "3.14",
		"time": "2026-05-06T07:08:09Z", "x-correlation-id": "conversation",
	}
	if diff := cmp.Diff(want, rec.Headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if rec.Name != "order.placed" || rec.Key != "k" || failures != 2 || rec.ID.String() != "01563e3a-b5d3-d676-4c61-efb99302bd5b" {
		t.Errorf("name %q, key %q, %d failures, id %s", rec.Name, rec.Key, failures, rec.ID)
	}
}

// Some producers have raw bytes as correlation id: with them a handler could dispatch nothing
// of the same conversation.
func TestCorrelationIDThatIsNoTextIsLeftOut(t *testing.T) {
	for given, want := range map[string]string{"conversation": "conversation", "\x8f\x1e\xc2\xff": "", "": ""} {
		rec, _ := new(Config).decode(&amqp.Delivery{MessageId: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Type: "order.placed", CorrelationId: given}, arrival)
		if got, ok := rec.Headers[waybill.HeaderCorrelationID]; got != want || ok != (want != "") || rec.Problem != nil {
			t.Errorf("correlation id %q: %q, %t, problem %v, want %q", given, got, ok, rec.Problem, want)
		}
		if err := (waybill.Limits{}).Check(rec); err != nil {
			t.Errorf("correlation id %q: the record cannot be dispatched: %v", given, err)
		}
	}
}

// Former versions and other producers send headers instead of properties.
func TestHeadersWinOverProperties(t *testing.T) {
	const other = "0199a5c3-1234-7abc-8def-0123456789ab"
	rec, failures := new(Config).decode(&amqp.Delivery{
		MessageId: "0c5f1e5c-6f0b-4a54-9d3f-0e7a2b0c9d11", Type: "of.the.property", Timestamp: arrival,
		Headers: amqp.Table{"type": "order.placed", "x-message-id": other, "x-attempt": "1", "x-publish-no": "17", "x-dispatched-at": "2026-01-02T03:04:05.000001Z"},
	}, arrival)
	if rec.Problem != nil || rec.Name != "order.placed" || rec.ID.String() != other || failures != 0 || len(rec.Headers) > 0 ||
		!rec.DispatchedAt.Equal(time.Date(2026, 1, 2, 3, 4, 5, 1000, time.UTC)) {
		t.Errorf("%+v, %d failures", rec, failures)
	}
}

// KeyOf sees the bytes of strangers on the connection's goroutine.
func TestKeyOfThatPanicsIsTheProblemOfItsMessage(t *testing.T) {
	cfg := &Config{KeyOf: func(rec *waybill.Record) string { return string(rec.Body[:3]) }}
	bad, _ := cfg.decode(&amqp.Delivery{MessageId: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Type: "order.placed", Body: []byte("{}")}, arrival)
	var panicked *waybill.PanicError
	if !errors.As(bad.Problem, &panicked) || !strings.Contains(string(panicked.Stack), "decode_test.go") || bad.Key != "" {
		t.Errorf("problem = %v, key %q, want a PanicError with its stack and no key", bad.Problem, bad.Key)
	}
	good, _ := cfg.decode(&amqp.Delivery{MessageId: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Type: "order.placed", Body: []byte("key")}, arrival)
	if good.Problem != nil || good.Key != "key" {
		t.Errorf("problem = %v, key %q, want the key of the body", good.Problem, good.Key)
	}
}

func TestTimeOfDispatchIsTheBestKnown(t *testing.T) {
	const v4, v7 = "0c5f1e5c-6f0b-4a54-9d3f-0e7a2b0c9d11", "0199a5c3-1234-7abc-8def-0123456789ab"
	second := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		id, exact string
		timestamp time.Time
		want      string
	}{
		{v4, "2026-01-02T05:04:05.000001+02:00", second, "2026-01-02T03:04:05.000001Z"},
		{v4, "soon", second, "2026-01-02T03:04:05Z"},
		{v7, "", second, "2026-01-02T03:04:05Z"}, // the caller's own id, made months before
		{v7, "", time.Date(2025, 10, 2, 16, 30, 49, 0, time.UTC), "2025-10-02T16:30:48.884Z"},
		{v7, "", time.Time{}, "2025-10-02T16:30:48.884Z"},
		{v4, "", time.Time{}, "2026-05-06T07:08:09Z"},
	} {
		headers := amqp.Table{"x-dispatched-at": tt.exact, "type": "a"}
		rec, _ := new(Config).decode(&amqp.Delivery{MessageId: tt.id, Timestamp: tt.timestamp, Headers: headers}, arrival)
		if got := rec.DispatchedAt.Format(time.RFC3339Nano); got != tt.want {
			t.Errorf("%+v: got %s", tt, got)
		}
	}
}

func TestStrangersAreKeptWithAProblem(t *testing.T) {
	const id = "0199a5c3-1234-7abc-8def-0123456789ab"
	for want, d := range map[string]amqp.Delivery{
		"no id":      {Type: "order.placed"},
		"no name":    {MessageId: id},
		"message id": {MessageId: "order-1", Type: "order.placed"},
	} {
		d.Body = []byte("raw")
		keyed := Config{KeyOf: func(*waybill.Record) string { t.Errorf("%s: asked for the key", want); return "" }}
		rec, _ := keyed.decode(&d, arrival)
		if rec.Problem == nil || !strings.Contains(rec.Problem.Error(), want) || string(rec.Body) != "raw" {
			t.Errorf("%+v: problem %v, want one about %q", d, rec.Problem, want)
		}
	}
}

// Whatever bytes a producer puts into its headers, decoding neither panics nor
// loses the body.
func FuzzDecode(f *testing.F) {
	f.Add("order.placed", "0199a5c3-1234-7abc-8def-0123456789ab", "3", "2026-01-02T03:04:05Z", "name", []byte("value"))
	f.Add("", "", "-1", "", "type", []byte{0xff})
	f.Fuzz(func(t *testing.T, name, id, attempt, at, header string, value []byte) {
		rec, failures := new(Config).decode(&amqp.Delivery{Type: name, MessageId: id, Body: value, Headers: amqp.Table{"x-attempt": attempt, "x-dispatched-at": at, header: value}}, arrival)
		if failures < 0 || string(rec.Body) != string(value) || rec.DispatchedAt.IsZero() && at == "" {
			t.Errorf("%d failures, %+v", failures, rec)
		}
		if rec.Problem == nil && (rec.ID.IsZero() || rec.Name == "") {
			t.Errorf("no problem with %+v", rec)
		}
	})
}
