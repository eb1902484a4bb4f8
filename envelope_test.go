package waybill_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
)

func TestEnvelopeIsImmutable(t *testing.T) {
	given := []waybill.Stamp{waybill.BusName("one"), waybill.BusName("two")}
	base := waybill.NewEnvelope(placed{"o-1", 1}, given...)
	given[0] = waybill.BusName("changed")
	left, right := base.With(waybill.CausationID("left")), base.With(waybill.CausationID("right"))
	without := waybill.Without[waybill.BusName](left)

	stamps := func(e *waybill.Envelope) []waybill.Stamp { return slices.Collect(e.Stamps()) }
	one, two := waybill.Stamp(waybill.BusName("one")), waybill.Stamp(waybill.BusName("two"))
	for _, tt := range []struct {
		name string
		env  *waybill.Envelope
		want []waybill.Stamp
	}{
		{"base", base, []waybill.Stamp{one, two}},
		{"left", left, []waybill.Stamp{one, two, waybill.CausationID("left")}},
		{"right", right, []waybill.Stamp{one, two, waybill.CausationID("right")}},
		{"without", without, []waybill.Stamp{waybill.CausationID("left")}},
		{"of an envelope", waybill.NewEnvelope(without, one), []waybill.Stamp{waybill.CausationID("left"), one}},
	} {
		if diff := cmp.Diff(tt.want, stamps(tt.env)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if tt.env.Message() != any(placed{"o-1", 1}) {
			t.Errorf("%s: message %v, want the one given", tt.name, tt.env.Message())
		}
	}
}

func TestLastIsTheNewestAndAllAreInOrder(t *testing.T) {
	env := waybill.NewEnvelope(placed{}, waybill.HandledBy("a"), waybill.Header("x", "1"), waybill.HandledBy("b"), waybill.Header("x", "2"))
	if got, ok := waybill.Last[waybill.HandledBy](env); got != "b" || !ok {
		t.Errorf("Last = %q, %t, want b", got, ok)
	}
	if got := waybill.All[waybill.HandledBy](env); !cmp.Equal(got, []waybill.HandledBy{"a", "b"}) {
		t.Errorf("All = %v, want a, b", got)
	}
	if got, ok := env.Header("x"); got != "2" || !ok {
		t.Errorf("Header = %q, %t, want 2", got, ok)
	}
	if _, ok := waybill.Last[waybill.Delay](env); ok {
		t.Error("Last found a stamp that is not there")
	}
	if _, ok := env.Header("y"); ok {
		t.Error("Header found a header that is not there")
	}
	if n := testing.AllocsPerRun(100, func() { waybill.Last[waybill.HandledBy](env) }); n != 0 {
		t.Errorf("Last allocates %v times, want 0", n)
	}
}
