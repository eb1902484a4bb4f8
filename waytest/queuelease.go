package waytest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
)

func holderWhoseLeaseEndedIsFenced[TX any](t *testing.T, s *fixture[TX]) {
	a, b := s.queue("q", 400*time.Millisecond), s.queue("q", 0)
	s.local(order{"x", 0}, order{"x", 1})
	delivered := receive(t, a, 1)
	taken := receive(t, b, 1)
	wantOrders(t, "b after a's lease", taken, order{"x", 0})
	if taken[0].Failures != 0 {
		t.Error("a lease that ended counted as a failure")
	}
	lost, err := a.Renew(t.Context(), delivered...)
	if err != nil || len(lost) != 1 {
		t.Errorf("Renew = %v, %v, want the one as lost", lost, err)
	}
	for name, settle := range map[string]func() error{
		"Ack":                     func() error { return a.Ack(t.Context(), delivered...) },
		"Retry":                   func() error { return a.Retry(t.Context(), delivered[0], 0) },
		"Release":                 func() error { return a.Release(t.Context(), delivered...) },
		"Ack by another receiver": func() error { return a.Ack(t.Context(), taken...) },
	} {
		if err := settle(); !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("%s of a late holder = %v, want ErrLeaseLost", name, err)
		}
	}
	if lost, err := b.Renew(t.Context(), taken...); err != nil || len(lost) != 0 {
		t.Errorf("Renew of the new holder = %v, %v", lost, err)
	}
	try(t, "Ack of the new holder", b.Ack(t.Context(), taken...))
	wantOrders(t, "what is left", receive(t, b, 40), order{"x", 1})
}

// The same receiver may have let a lease end and claimed the row again: its first
// delivery must not settle the second, even if one call settles both.
func oldDeliveryOfTheSameHolderIsFenced[TX any](t *testing.T, s *fixture[TX]) {
	q := s.queue("q", time.Second)
	s.local(order{"x", 0})
	old := receive(t, q, 1)[0]
	current := receive(t, q, 1)[0]
	if err := q.Ack(t.Context(), old); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("Ack of the old delivery = %v, want ErrLeaseLost", err)
	}
	for _, both := range [][]*waybill.Delivery{{old, current}, {current, old}} {
		if lost, err := q.Renew(t.Context(), both...); err != nil || !slices.Equal(lost, []*waybill.Delivery{old}) {
			t.Errorf("Renew of both deliveries = %d lost, %v, want the old one", len(lost), err)
		}
	}
	if err := q.Ack(t.Context(), current, old); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("Ack of both deliveries = %v, want ErrLeaseLost", err)
	}
	if err := q.Ack(t.Context(), current); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("Ack after that = %v, want ErrLeaseLost: the message was ended with the other", err)
	}
}

func renewedLeaseIsKept[TX any](t *testing.T, s *fixture[TX]) {
	const lease = time.Second
	a, b := s.queue("q", lease), s.queue("q", 0)
	s.local(order{"x", 0})
	ds := receive(t, a, 1)
	for start, last := time.Now(), time.Now(); time.Since(start) < 2*lease; last = time.Now() {
		if got := glance(t, b, 1); len(got) > 0 && time.Since(last) < lease/2 {
			t.Fatalf("%v was taken from a holder who renews", ordersOf(got))
		}
		if lost, err := a.Renew(t.Context(), ds...); err != nil || len(lost) > 0 && time.Since(last) < lease/2 {
			t.Fatalf("Renew = %v, %v", lost, err)
		}
	}
	try(t, "Ack", a.Ack(t.Context(), ds...))
}

// A claim that locks rows, because it has two of a key, takes due ones without a key, too.
func dueMessageComesBesideThoseOfAKey[TX any](t *testing.T, s *fixture[TX]) {
	a, b := s.queue("q", 0), s.queue("q", 0)
	s.local(order{"", 0}, order{"", 1})
	ds := receive(t, a, 2)
	try(t, "Retry", a.Retry(t.Context(), ds[0], 0))
	s.local(order{"x", 0}, order{"x", 1})
	got := receive(t, b, 20)
	wantOrders(t, "the due one and those behind it", got, order{"", 0}, order{"x", 0}, order{"x", 1})
	if got[0].Failures != 1 || got[0].Redelivered {
		t.Errorf("the due one has %d failures, redelivered %v, want 1, false", got[0].Failures, got[0].Redelivered)
	}
	if err := a.Ack(t.Context(), ds[0]); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("Ack of its first delivery = %v, want ErrLeaseLost", err)
	}
	wantOrders(t, "a second claim", glance(t, a, 20))
}

// A claim reads a window of the oldest claimable messages. Where it ends within a key, claimable
// messages beyond it come before the key's messages set aside.
func keyOfWhichAClaimReadsAPartKeepsItsOrder[TX any](t *testing.T, s *fixture[TX]) {
	a, b := s.queue("q", 0), s.queue("q", 0)
	all := []order{{"x", 0}}
	for i := range 200 { // more than a claim of 20 reads
		all = append(all, order{"", i})
	}
	all = append(all, order{"x", 1})
	s.local(all...)
	leased := receive(t, a, 1000)
	wantOrders(t, "all", leased, all...)
	s.local(order{"x", 2})
	wantOrders(t, "the one behind the leased ones, which is set aside", glance(t, b, 20))
	s.local(order{"x", 3})
	try(t, "Release", a.Release(t.Context(), leased...))
	var got []order
	for len(got) < len(all)+2 {
		ds := receive(t, b, 20)
		got = append(got, ordersOf(ds)...)
		try(t, "Ack", b.Ack(t.Context(), ds...))
	}
	got = slices.DeleteFunc(got, func(o order) bool { return o.Key != "x" })
	if diff := cmp.Diff([]order{{"x", 0}, {"x", 1}, {"x", 2}, {"x", 3}}, got); diff != "" {
		t.Errorf("order of the key (-want +got):\n%s", diff)
	}
}
