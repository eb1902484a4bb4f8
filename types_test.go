package waybill_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
)

// placed is the message of these tests.
type placed struct {
	OrderID string `json:"orderId"`
	Cents   int    `json:"cents"`
}

func (placed) MessageName() string    { return "order.placed" }
func (m placed) PartitionKey() string { return m.OrderID }

type (
	nameless struct{ A int }
	badName  struct{}
	ptrName  struct{}
	ptrKey   struct{}
	textual  string
)

func (badName) MessageName() string  { return "order placed" }
func (*ptrName) MessageName() string { return "ptr.name" }
func (ptrKey) MessageName() string   { return "ptr.key" }
func (*ptrKey) PartitionKey() string { return "k" }
func (textual) MessageName() string  { return "textual" }

func panics(f func()) (text string) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case error:
			text = v.Error()
		case string:
			text = v
		}
	}()
	f()
	return ""
}

func wantPanic(t *testing.T, what, part string, f func()) {
	t.Helper()
	if got := panics(f); got == "" || !strings.Contains(got, part) {
		t.Errorf("%s: panic %q, want one with %q", what, got, part)
	}
}

func handleAny[M any](b *waybill.Bus) func() {
	return func() { waybill.Handle(b, "h", func(context.Context, M) error { return nil }) }
}

func TestWhatCannotBeAMessageIsRefusedAtHandle(t *testing.T) {
	b := waybill.NewBus("main")
	wantPanic(t, "pointer receiver of MessageName", "pointer receiver", handleAny[ptrName](b))
	wantPanic(t, "pointer receiver of PartitionKey", "PartitionKey has a pointer receiver", handleAny[ptrKey](b))
	wantPanic(t, "pointer", "not a pointer", handleAny[*placed](b))
	wantPanic(t, "interface", "a message is a struct", handleAny[any](b))
	wantPanic(t, "interface with a name", "a message is a struct", handleAny[waybill.Named](b))
	wantPanic(t, "string", "a message is a struct", handleAny[textual](b))
	wantPanic(t, "no name", "give it a method MessageName() string", handleAny[nameless](b))
	wantPanic(t, "name with a space", "order.placed", handleAny[badName](b))
	wantPanic(t, "raw message", "", handleAny[waybill.RawMessage](b))
}

func TestWhatCannotBeAMessageIsRefusedAtFirstDispatch(t *testing.T) {
	b := waybill.NewBus("main")
	b.AddSender("out", new(outbound))
	b.Route("*", "out")
	for name, msg := range map[string]any{
		"pointer receiver of MessageName":  ptrName{},
		"pointer receiver of PartitionKey": ptrKey{},
		"pointer":                          &placed{},
		"string":                           textual("x"),
		"nil":                              nil,
		"no name":                          nameless{},
		"map":                              map[string]int{},
	} {
		_, err := b.Dispatch(t.Context(), msg)
		var wrong *waybill.TypeError
		if !errors.As(err, &wrong) {
			t.Errorf("%s: Dispatch = %v, want a TypeError", name, err)
		}
	}
	if _, err := b.Dispatch(t.Context(), badName{}); err == nil {
		t.Error("bad name: Dispatch = nil, want an error")
	}
}

func TestTypesAreAnAllowList(t *testing.T) {
	types := waybill.NewTypes()
	waybill.Register[placed](types, "")
	waybill.Register[nameless](types, "thing.done")
	types.Alias("order.created", "order.placed")
	types.AllowRaw("raw.one", "raw.two")
	if diff := cmp.Diff([]string{"order.placed", "raw.one", "raw.two", "thing.done"}, types.Names()); diff != "" {
		t.Errorf("Names (-want +got):\n%s", diff)
	}
	s := waybill.Serializer{Types: types}
	decode := func(name string) (any, error) {
		env, err := s.Decode(&waybill.Record{ID: newID(t), Name: name, Body: []byte(`{"orderId":"o","A":3}`)})
		if err != nil {
			return nil, err
		}
		return env.Message(), nil
	}
	for name, want := range map[string]any{
		"order.placed":  placed{OrderID: "o"},
		"order.created": placed{OrderID: "o"},
		"thing.done":    nameless{3},
		"raw.one":       waybill.RawMessage{Name: "raw.one", Body: []byte(`{"orderId":"o","A":3}`)},
	} {
		if got, err := decode(name); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s decodes as %#v, %v, want %#v", name, got, err, want)
		}
	}
	_, err := decode("order.deleted")
	var unknown *waybill.UnknownNameError
	if !errors.As(err, &unknown) || !strings.Contains(err.Error(), "known are order.placed") {
		t.Errorf("unknown name: %v, want an error that lists the known ones", err)
	}
	for msg, want := range map[any]string{placed{}: "order.placed", nameless{}: "thing.done", unregistered{}: "un.registered"} {
		if got, err := types.NameOf(msg); err != nil || got != want {
			t.Errorf("NameOf(%T) = %q, %v, want %q", msg, got, err, want)
		}
	}
	if name, err := types.NameOf(waybill.RawMessage{Name: "raw.three"}); err == nil {
		t.Errorf("NameOf of a raw message that is not allowed = %q, want an error", name)
	}
	if name, err := types.NameOf(waybill.RawMessage{Name: "order.created"}); err != nil || name != "order.placed" {
		t.Errorf("NameOf of a raw message with an old name = %q, %v, want the new one", name, err)
	}
}

type unregistered struct{}

func (unregistered) MessageName() string { return "un.registered" }

func TestTakenNamesPanic(t *testing.T) {
	types := waybill.NewTypes()
	waybill.Register[placed](types, "")
	waybill.Register[placed](types, "") // a repeated registration is allowed
	types.Alias("order.created", "order.placed")
	wantPanic(t, "second name of a type", `is registered as "order.placed", so it cannot be "order.paid"`, func() { waybill.Register[placed](types, "order.paid") })
	wantPanic(t, "name of another type", "is taken by", func() { waybill.Register[nameless](types, "order.placed") })
	wantPanic(t, "empty name", "has no name", func() { waybill.Register[nameless](types, "") })
	wantPanic(t, "alias twice", "already in use", func() { types.Alias("order.created", "order.placed") })
	wantPanic(t, "alias that is a name", "already in use", func() { types.Alias("order.placed", "order.placed") })
	wantPanic(t, "alias of nothing", "not registered", func() { types.Alias("a", "b") })
	wantPanic(t, "raw name that is none", "message name", func() { types.AllowRaw("a b") })
	wantPanic(t, "long name", "limit is 190", func() { waybill.Register[nameless](types, strings.Repeat("n", 191)) })
	waybill.Register[nameless](types, strings.Repeat("n", 190))
}
