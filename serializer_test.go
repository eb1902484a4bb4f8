package waybill_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
)

func newSerializer() *waybill.Serializer {
	s := &waybill.Serializer{Types: waybill.NewTypes()}
	waybill.Register[placed](s.Types, "")
	s.Types.AllowRaw("raw")
	return s
}

func encode(t testing.TB, msg any, stamps ...waybill.Stamp) (*waybill.Record, error) {
	t.Helper()
	return newSerializer().Encode(waybill.NewEnvelope(msg, stamps...).With(newID(t)))
}

// nested returns JSON of the given depth.
func nested(depth int) []byte {
	return []byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))
}

func headers(n int) []waybill.Stamp {
	var stamps []waybill.Stamp
	for i := range n {
		stamps = append(stamps, waybill.Header(fmt.Sprint("h", i), ""))
	}
	return stamps
}

func TestLimitsHoldAtTheirEdges(t *testing.T) {
	raw := func(body []byte) waybill.RawMessage { return waybill.RawMessage{Name: "raw", Body: body} }
	ofSize := func(n int) []byte { return []byte(`"` + strings.Repeat("x", n-2) + `"`) }
	tests := []struct {
		name   string
		msg    any
		stamps []waybill.Stamp
		ok     bool
	}{
		{"body of 1 MiB", raw(ofSize(1 << 20)), nil, true},
		{"body of 1 MiB and a byte", raw(ofSize(1<<20 + 1)), nil, false},
		{"other body of 1 MiB and a byte", waybill.RawMessage{Name: "raw", ContentType: "text/plain", Body: ofSize(1<<20 + 1)}, nil, false},
		{"message of 1 MiB and more", placed{OrderID: "o", Cents: 1}, []waybill.Stamp{waybill.PartitionKey("k")}, true},
		{"depth 100", raw(nested(100)), nil, true},
		{"depth 101", raw(nested(101)), nil, false},
		{"brackets in a string", raw([]byte(`"` + strings.Repeat(`[\"`, 200) + `"`)), nil, true},
		{"64 headers", placed{}, headers(64), true},
		{"65 headers", placed{}, headers(65), false},
		{"headers of 32 KiB", placed{}, []waybill.Stamp{waybill.Header("h", strings.Repeat("v", 32<<10-1))}, true},
		{"headers of 32 KiB and a byte", placed{}, []waybill.Stamp{waybill.Header("h", strings.Repeat("v", 32<<10))}, false},
		{"header name of 255 bytes", placed{}, []waybill.Stamp{waybill.Header(strings.Repeat("h", 255), "")}, true},
		{"header name of 256 bytes", placed{}, []waybill.Stamp{waybill.Header(strings.Repeat("h", 256), "")}, false},
		{"header without name", placed{}, []waybill.Stamp{waybill.Header("", "v")}, false},
		{"header with token characters", placed{}, []waybill.Stamp{waybill.Header("a-b_c.d!#$%&'*+^`|~9", "v")}, true},
		{"header name with a colon", placed{}, []waybill.Stamp{waybill.Header("a:b", "v")}, false},
		{"header name with a space", placed{}, []waybill.Stamp{waybill.Header("a b", "v")}, false},
		{"header name beyond ASCII", placed{}, []waybill.Stamp{waybill.Header("ä", "v")}, false},
		{"header value with text", placed{}, []waybill.Stamp{waybill.Header("h", "grüß\tdich")}, true},
		{"header value with a line end", placed{}, []waybill.Stamp{waybill.Header("h", "a\r\nb: c")}, false},
		{"header value with NUL", placed{}, []waybill.Stamp{waybill.Header("h", "a\x00b")}, false},
		{"header value that is not UTF-8", placed{}, []waybill.Stamp{waybill.Header("h", "\xff")}, false},
		{"idempotency key with a line end", placed{}, []waybill.Stamp{waybill.IdempotencyKey("a\nb")}, false},
		{"key of 255 bytes", placed{}, []waybill.Stamp{waybill.PartitionKey(strings.Repeat("k", 255))}, true},
		{"key of 256 bytes", placed{}, []waybill.Stamp{waybill.PartitionKey(strings.Repeat("k", 256))}, false},
		{"key of 256 bytes in 128 letters", placed{OrderID: strings.Repeat("ä", 128)}, nil, false},
		{"key with NUL", placed{OrderID: "a\x00"}, nil, false},
		{"key that is not UTF-8", placed{}, []waybill.Stamp{waybill.PartitionKey("\xff")}, false},
		{"delay", placed{}, []waybill.Stamp{waybill.Delay(time.Hour)}, true},
		{"negative delay", placed{}, []waybill.Stamp{waybill.Delay(-1)}, false},
		{"raw body that is not JSON", raw([]byte(`{"a":}`)), nil, false},
		{"raw body of two values", raw([]byte(`{} {}`)), nil, false},
		{"empty raw body", raw(nil), nil, false},
		{"empty raw body of another type", waybill.RawMessage{Name: "raw", ContentType: "text/plain"}, nil, true},
	}
	for _, tt := range tests {
		rec, err := encode(t, tt.msg, tt.stamps...)
		if (err == nil) != tt.ok {
			t.Errorf("%s: error %v, want one: %t", tt.name, err, !tt.ok)
		}
		if err != nil && (rec != nil || len(err.Error()) > 400) {
			t.Errorf("%s: record %v with an error of %d bytes, want none and a short one", tt.name, rec, len(err.Error()))
		}
	}
}

func TestReservedHeadersAreRefused(t *testing.T) {
	for _, name := range []string{
		"x-message-id", "X-Message-Id", "x-attempt", "x-partition-key", "x-correlation-id", "x-causation-id", "x-idempotency-key", "x-handled-by",
		"type", "content-type", "user_id", "expiration", "CC", "bcc",
		"x-death", "x-delivery-count", "x-acquired-count", "x-first-death-reason", "X-Last-Death-Queue",
	} {
		if _, err := encode(t, placed{}, waybill.Header(name, "v")); err == nil || !strings.Contains(err.Error(), "choose another") {
			t.Errorf("header %s: %v, want an error with a remedy", name, err)
		}
	}
}

type (
	branch map[string]branch // a type that is made of itself
	forest struct {
		Branches branch
		Done     chan int
	}
)

func (forest) MessageName() string { return "forest" }

func TestFieldThatCannotBeEncodedIsFoundBehindARecursiveType(t *testing.T) {
	result := make(chan error, 1)
	go func() {
		_, err := encode(t, forest{})
		result <- err
	}()
	select {
	case err := <-result:
		if err == nil || !strings.Contains(err.Error(), "field Done: ") {
			t.Errorf("Encode = %v, want an error about the field Done", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Encode does not return")
	}
}

type hiddenFields struct{ id, customer string }

type ownJSON struct{ id string }

func (ownJSON) MarshalJSON() ([]byte, error) { return []byte("{}"), nil }

func TestMessageThatWouldLoseItsFieldsIsRefused(t *testing.T) {
	_, err := waybill.JSON{}.Encode(hiddenFields{"o-7", "c-1"})
	if err == nil || !strings.Contains(err.Error(), "not exported") {
		t.Errorf("Encode of unexported fields = %v, want an error", err)
	}
	for _, msg := range []any{struct{}{}, ownJSON{"o-7"}, struct{ hiddenFields }{}, struct {
		Note string `json:",omitempty"`
	}{}} {
		if body, err := (waybill.JSON{}).Encode(msg); err != nil || string(body) != "{}" {
			t.Errorf("Encode(%T) = %s, %v, want {}", msg, body, err)
		}
	}
}

func TestDecodeHasLimitsToo(t *testing.T) {
	s := newSerializer()
	for name, body := range map[string][]byte{
		"too large":        []byte(`{"orderId":"` + strings.Repeat("x", 1<<20) + `"}`),
		"too deep":         []byte(`{"x":` + string(nested(100)) + `}`),
		"not JSON":         []byte(`{`),
		"empty":            nil,
		"of another shape": []byte(`[1]`),
		"null":             []byte(" null\n"), // no field would be set
	} {
		_, err := s.Decode(&waybill.Record{ID: newID(t), Name: "order.placed", Body: body})
		var decode *waybill.DecodeError
		if !errors.As(err, &decode) || !waybill.IsUnrecoverable(err) {
			t.Errorf("%s: Decode = %v, want an unrecoverable DecodeError", name, err)
		}
	}
	if _, err := s.Decode(&waybill.Record{ID: newID(t), Name: "order.placed", Body: []byte(`{}`), Problem: errBoom}); !errors.Is(err, errBoom) {
		t.Errorf("Decode of a record with a problem = %v, want the problem", err)
	}
	s.Limits = waybill.Limits{Body: 2, Depth: 1}
	if _, err := s.Decode(&waybill.Record{ID: newID(t), Name: "order.placed", Body: []byte(`{}`)}); err != nil {
		t.Errorf("Decode within configured limits = %v, want nil", err)
	}
}

func TestEncodeNeedsAnID(t *testing.T) {
	if _, err := newSerializer().Encode(waybill.NewEnvelope(placed{})); err == nil {
		t.Error("Encode without an id = nil, want an error")
	}
}

func TestBytesOfRawMessageAreUnchanged(t *testing.T) {
	body := []byte("\t{ \"b\" : 1.0e+2,\n  \"a\" : \"<&>\\u0041\" }\n")
	s := newSerializer()
	rec, err := s.Encode(waybill.NewEnvelope(waybill.RawMessage{Name: "raw", Key: "k", Body: body}, newID(t)))
	if err != nil {
		t.Fatal(err)
	}
	env, err := s.Decode(rec)
	if err != nil {
		t.Fatal(err)
	}
	want := waybill.RawMessage{Name: "raw", Key: "k", ContentType: "application/json", Body: body}
	if diff := cmp.Diff(want, env.Message()); diff != "" {
		t.Errorf("raw message (-want +got):\n%s", diff)
	}
}

// A stranger's correlation id is no reason for a handler's dispatch to fail: middleware.Correlation copies it.
func TestForeignCorrelationIDThatCannotBeDispatchedIsLeftOut(t *testing.T) {
	for _, id := range []string{strings.Repeat("c", 256), "a\nb", "\xff"} {
		s := newSerializer()
		rec, err := s.Encode(waybill.NewEnvelope(placed{"o-1", 7}, newID(t)))
		if err != nil {
			t.Fatal(err)
		}
		rec.Headers = map[string]string{waybill.HeaderCorrelationID: id}
		env, err := s.Decode(rec)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := waybill.Last[waybill.CorrelationID](env); ok {
			t.Errorf("the correlation id is %q, want none", got)
		}
	}
}

func TestStampsTravel(t *testing.T) {
	s := newSerializer()
	id := newID(t)
	rec, err := s.Encode(waybill.NewEnvelope(placed{"o-1", 7}, id, waybill.PartitionKey("other"), waybill.Delay(time.Hour), waybill.IdempotencyKey("idem"),
		waybill.CorrelationID("corr"), waybill.CausationID("cause"), waybill.Header("tenant", "acme"), waybill.BusName("local"), waybill.TransportNames{"local"}))
	if err != nil {
		t.Fatal(err)
	}
	rec.MarkHandled("one", "two")
	rec.MarkHandled("two", "three")
	rec.MarkHandled()
	want := &waybill.Record{
		ID: id, Name: "order.placed", Key: "other", ContentType: "application/json", Body: []byte(`{"orderId":"o-1","cents":7}`), DispatchedAt: rec.DispatchedAt, Delay: time.Hour,
		Headers: map[string]string{"tenant": "acme", "x-idempotency-key": "idem", "x-correlation-id": "corr", "x-causation-id": "cause", "x-handled-by": "one,two,three"},
	}
	if diff := cmp.Diff(want, rec); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	env, err := s.Decode(rec)
	if err != nil {
		t.Fatal(err)
	}
	if env.Message() != any(placed{"o-1", 7}) {
		t.Errorf("message = %v, want the one dispatched", env.Message())
	}
	sorted := func(stamps []waybill.Stamp) []string {
		var all []string
		for _, s := range stamps {
			all = append(all, fmt.Sprintf("%T %v", s, s))
		}
		slices.Sort(all)
		return all
	}
	stamps := []waybill.Stamp{id, waybill.MessageName("order.placed"), waybill.DispatchedAt(rec.DispatchedAt), waybill.PartitionKey("other"), waybill.IdempotencyKey("idem"),
		waybill.CorrelationID("corr"), waybill.CausationID("cause"), waybill.Header("tenant", "acme"), waybill.HandledBy("one"), waybill.HandledBy("two"), waybill.HandledBy("three")}
	if diff := cmp.Diff(sorted(stamps), sorted(slices.Collect(env.Stamps()))); diff != "" {
		t.Errorf("stamps (-want +got):\n%s", diff)
	}
}

// Every accepted header arrives unchanged.
func TestHeadersRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		given := rapid.MapOfN(rapid.String(), rapid.String(), 0, 5).Draw(t, "headers")
		roundTripHeaders(t, given)
	})
}

func FuzzHeaderRoundTrip(f *testing.F) {
	f.Add("tenant", "acme")
	f.Add("x-handled-by", "a,b")
	f.Add("h", "\r\n")
	f.Fuzz(func(t *testing.T, name, value string) { roundTripHeaders(t, map[string]string{name: value}) })
}

type failer interface {
	Fatalf(format string, args ...any)
	Helper()
}

func roundTripHeaders(t failer, given map[string]string) {
	t.Helper()
	id, err := waybill.NewMessageID()
	if err != nil {
		t.Fatalf("id: %v", err)
	}
	env := waybill.NewEnvelope(placed{}, id)
	for name, value := range given {
		env = env.With(waybill.Header(name, value))
	}
	s := newSerializer()
	rec, err := s.Encode(env)
	if err != nil {
		return // it was refused
	}
	if len(given) > 0 && !maps.Equal(rec.Headers, given) {
		t.Fatalf("headers of the record are %q, want %q", rec.Headers, given)
	}
	back, err := s.Decode(rec)
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	for name, value := range given {
		if got, ok := back.Header(name); !ok || got != value {
			t.Fatalf("header %q = %q, %t, want %q", name, got, ok, value)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("order.placed", []byte(`{"orderId":"o","cents":3}`))
	f.Add("order.placed", nested(200))
	f.Add("raw", []byte("\x00"))
	s := newSerializer()
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		env, err := s.Decode(&waybill.Record{ID: waybill.MessageID{1}, Name: name, Body: body})
		if err != nil {
			if !waybill.IsUnrecoverable(err) {
				t.Errorf("Decode = %v, want an unrecoverable error: no retry can mend it", err)
			}
			return
		}
		switch m := env.Message().(type) {
		case placed:
			if !json.Valid(body) {
				t.Errorf("%q was decoded and is not JSON", body)
			}
		case waybill.RawMessage:
			if !bytes.Equal(m.Body, body) {
				t.Errorf("raw body %q, want %q", m.Body, body)
			}
		default:
			t.Errorf("%q was decoded as a %T, which is not registered", name, m)
		}
	})
}
