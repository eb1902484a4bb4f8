package waybill_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
)

// Three versions of a message.
type (
	paid struct {
		Order string `json:"order"`
		Cents int    `json:"cents"`
	}
	paidV2 struct {
		Order    string `json:"order"`
		Cents    int    `json:"cents"`
		Currency string `json:"currency"`
	}
	paidV3 struct {
		Order string `json:"order"`
		Total string `json:"total"`
	}
)

func (paid) MessageName() string      { return "order.paid.v1" }
func (paidV2) MessageName() string    { return "order.paid.v2" }
func (paidV3) MessageName() string    { return "order.paid.v3" }
func (m paid) PartitionKey() string   { return m.Order }
func (m paidV2) PartitionKey() string { return m.Order }
func (m paidV3) PartitionKey() string { return m.Order }

var errNegative = errors.New("negative amount")

func paid1to2(m paid) (paidV2, error) { return paidV2{m.Order, m.Cents, "EUR"}, nil }

func paid2to3(m paidV2) (paidV3, error) {
	switch {
	case m.Cents < 0:
		return paidV3{}, errNegative
	case m.Currency == "":
		panic("no currency")
	}
	return paidV3{m.Order, fmt.Sprint(m.Currency, " ", m.Cents)}, nil
}

// upcastBus has a handler of the third version, and gives the envelopes it gets.
func upcastBus(got *[]*waybill.Envelope) *waybill.Bus {
	b := waybill.NewBus("main")
	waybill.Upcast(b, paid2to3)
	waybill.Upcast(b, paid1to2)
	waybill.Handle(b, "bill", func(ctx context.Context, m paidV3) error {
		if env := waybill.EnvelopeFrom(ctx); env.Message() == any(m) {
			*got = append(*got, env)
		}
		return nil
	})
	return b
}

// What a handler sees of an old message is what it would see of a new one, but for the
// stamp that says so.
func TestUpcastMessageIsLikeAFreshOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var got []*waybill.Envelope
		b := upcastBus(&got)
		order := rapid.StringMatching(`[a-z]{0,9}`).Draw(t, "order")
		cents := rapid.IntRange(0, 1e6).Draw(t, "cents")
		var fresh []waybill.Stamp
		for _, msg := range []any{paidV3{order, fmt.Sprint("EUR ", cents)}, paidV2{order, cents, "EUR"}, paid{order, cents}} {
			stamps := []waybill.Stamp{waybill.MessageID{7}, waybill.IdempotencyKey("k"), waybill.Header("tenant", "acme")}
			rec, err := b.Serializer().Encode(waybill.NewEnvelope(msg, stamps...))
			if err != nil {
				t.Fatal(err)
			}
			body := string(rec.Body)
			rec.DispatchedAt = time.Time{}
			if err := b.HandleRecord(context.Background(), rec, "events", 0); err != nil {
				t.Fatal(err)
			}
			env := got[len(got)-1]
			seen := slices.SortedFunc(waybill.Without[waybill.UpcastFrom](env).Stamps(), func(a, b waybill.Stamp) int {
				return strings.Compare(fmt.Sprintf("%T%v", a, a), fmt.Sprintf("%T%v", b, b))
			})
			if fresh == nil {
				fresh = seen
			}
			if env.Message() != got[0].Message() || !reflect.DeepEqual(seen, fresh) {
				t.Fatalf("handler sees %v with %v of %T, want %v with %v", env.Message(), seen, msg, got[0].Message(), fresh)
			}
			if from, ok := waybill.Last[waybill.UpcastFrom](env); ok != (len(got) > 1) || ok && string(from) != rec.Name {
				t.Fatalf("UpcastFrom of %T is %q, %t", msg, from, ok)
			}
			if string(rec.Body) != body || len(got) == 3 && rec.Name != "order.paid.v1" {
				t.Fatalf("record is %s %s after its handling, want it as it came", rec.Name, rec.Body)
			}
		}
	})
}

func TestUpcasterThatFailsIsTheEndOfItsMessage(t *testing.T) {
	var got []*waybill.Envelope
	b := upcastBus(&got)
	for body, want := range map[string]string{
		`{"order":"o","cents":-1,"currency":"EUR"}`: "waybill: decode order.paid.v2: upcast order.paid.v2 to order.paid.v3: negative amount",
		`{"order":"o","cents":1}`:                   "waybill: decode order.paid.v2: upcast order.paid.v2 to order.paid.v3: panic: no currency",
		`{"order":3}`:                               "waybill: decode order.paid.v2: json: ",
	} {
		err := b.HandleRecord(t.Context(), &waybill.Record{ID: newID(t), Name: "order.paid.v2", Body: []byte(body)}, "events", 0)
		var decode *waybill.DecodeError
		if !errors.As(err, &decode) || !waybill.IsUnrecoverable(err) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want an unrecoverable DecodeError %q", body, err, want)
		}
	}
	// The name is the one that came, the versions those of the step that failed.
	err := b.HandleRecord(t.Context(), &waybill.Record{ID: newID(t), Name: "order.paid.v1", Body: []byte(`{"cents":-1}`)}, "events", 0)
	if want := "waybill: decode order.paid.v1: upcast order.paid.v2 to order.paid.v3: negative amount"; !errors.Is(err, errNegative) || err.Error() != want {
		t.Errorf("v1: %v, want %s", err, want)
	}
	err = b.HandleRecord(t.Context(), &waybill.Record{ID: newID(t), Name: "order.paid.v4", Body: []byte(`{}`)}, "events", 0)
	if want := `waybill: unknown message name "order.paid.v4": known are order.paid.v1, order.paid.v2, order.paid.v3; a renamed type decodes messages of its old name by Types.Alias`; err == nil || err.Error() != want {
		t.Errorf("v4: %v, want %s", err, want)
	}
	if len(got) > 0 {
		t.Errorf("handler got %v, want nothing", got)
	}
}

// A message without a route is handled at once, and one with a route travels as it is.
func TestDispatchedOldVersion(t *testing.T) {
	var got []*waybill.Envelope
	b := upcastBus(&got)
	if _, err := b.Dispatch(t.Context(), paid{"o", 3}, waybill.IdempotencyKey("k")); err != nil {
		t.Fatal(err)
	}
	if from, _ := waybill.Last[waybill.UpcastFrom](got[0]); got[0].Message() != any(paidV3{"o", "EUR 3"}) || from != "order.paid.v1" {
		t.Errorf("handler got %v from %q", got[0].Message(), from)
	}
	if _, err := b.Dispatch(t.Context(), paidV2{"o", -1, "EUR"}); !errors.Is(err, errNegative) {
		t.Errorf("Dispatch = %v, want the upcaster's error", err)
	}
	out := new(outbound)
	b.AddSender("out", out)
	b.Route("*", "out")
	b.Types().Alias("shop.paid", "order.paid.v1")
	for _, msg := range []any{paid{"o", 3}, waybill.RawMessage{Name: "order.paid.v1", Body: []byte(`{"order":"o","cents":3}`)}} {
		if _, err := b.Dispatch(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	for _, rec := range out.sent {
		if rec.Name != "order.paid.v1" || string(rec.Body) != `{"order":"o","cents":3}` {
			t.Errorf("sent %s %s, want the old version", rec.Name, rec.Body)
		}
	}
	// An alias of an old version goes through all of them.
	want := []string{"shop.paid", "order.paid.v1", "order.paid.v2", "order.paid.v3"}
	if diff := cmp.Diff(want, b.Types().Versions("shop.paid")); diff != "" {
		t.Errorf("Versions (-want +got):\n%s", diff)
	}
	rec := out.sent[0]
	rec.Name = "shop.paid"
	if err := b.HandleRecord(t.Context(), rec, "events", 0); err != nil || got[len(got)-1].Message() != any(paidV3{"o", "EUR 3"}) {
		t.Errorf("alias: %v, handler got %v", err, got[len(got)-1].Message())
	}
}

func TestUpcastersThatCannotBe(t *testing.T) {
	b := waybill.NewBus("main")
	waybill.Upcast(b, paid1to2)
	waybill.Upcast(b, paid2to3)
	wantPanic(t, "second", "order.paid.v1 has an upcaster to order.paid.v2 already", func() { waybill.Upcast(b, paid1to2) })
	wantPanic(t, "circle", "leads back to order.paid.v3", func() { waybill.Upcast(b, func(paidV3) (paid, error) { return paid{}, nil }) })
	wantPanic(t, "itself", "leads back to order.placed", func() { waybill.Upcast(b, func(m placed) (placed, error) { return m, nil }) })
	wantPanic(t, "handler of an old version", `handler "h" of order.paid.v2 would get no message: an upcaster makes them order.paid.v3`, handleAny[paidV2](b))
	wantPanic(t, "no name", "it has no name", func() { waybill.Upcast(b, func(nameless) (paid, error) { return paid{}, nil }) })
	wantPanic(t, "pointer", "not a pointer", func() { waybill.Upcast(b, func(*placed) (paid, error) { return paid{}, nil }) })
	b = waybill.NewBus("main")
	handleAny[paid](b)()
	wantPanic(t, "upcaster of a handled version", `handlers ["h"] of order.paid.v1 would get no messages`, func() { waybill.Upcast(b, paid1to2) })
}
