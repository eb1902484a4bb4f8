package waytest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// Rows with a key and without have equal ids, and delayed ones are counted anew and due at
// equal times.
func pagesOfTheOutboxSkipAndRepeatNothing[TX any](t *testing.T, s *fixture[TX]) {
	operator := s.operator()
	out := s.outbox(outbox.Config{})
	var msgs []any
	for i := range 5 {
		msgs = append(msgs, order{"k", i}, order{"", i})
	}
	s.put(out, msgs...)
	s.putOverdue(map[string]int{"d": 3, "": 3})
	s.put(out, waybill.NewEnvelope(order{"k", 9}, waybill.Delay(time.Hour)))
	for _, of := range []admin.OutboxQuery{{}, {Key: "k"}, {Name: order{}.MessageName()}, {Transport: outbox.DefaultTransport}} {
		want, err := operator.Outbox(t.Context(), of)
		if err != nil || len(want) < 6 {
			t.Fatalf("Outbox of %+v = %+v, %v", of, want, err)
		}
		for limit := 1; limit <= 3; limit++ {
			got, q := []admin.OutboxMessage{}, of
			q.Limit = limit
			for range len(want) + 1 {
				page, err := operator.Outbox(t.Context(), q)
				if err != nil {
					t.Fatalf("Outbox: %v", err)
				}
				if got = append(got, page...); len(page) < limit {
					break
				}
				q.Behind = &page[limit-1]
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("pages of %d of %+v (-want +got):\n%s", limit, of, diff)
			}
		}
	}
}

// A delayed message for a queue is selected by the transport that the list shows.
func delayedMessagesOfQueuesAreSelected[TX any](t *testing.T, s *fixture[TX]) {
	if s.Queue == nil {
		t.Skip("the store has no queues")
	}
	operator := s.operator()
	s.put(s.outbox(toQueue), waybill.NewEnvelope(order{"k", 1}, waybill.Delay(time.Hour)))
	s.put(s.outbox(outbox.Config{To: "other"}), waybill.NewEnvelope(order{"k", 2}, waybill.Delay(time.Hour)))
	all, err := operator.Outbox(t.Context(), admin.OutboxQuery{})
	if err != nil || len(all) != 2 || all[0].Transport != "queue://q" {
		t.Fatalf("Outbox = %+v, %v, want one of queue://q and another", all, err)
	}
	for transport, want := range map[string]int{"queue://q": 1, "q": 1, "other": 1, "queue://other": 0, "queue://": 0, "Q": 0} {
		found, err := operator.Outbox(t.Context(), admin.OutboxQuery{Transport: transport})
		if err != nil || len(found) != want {
			t.Errorf("Outbox of %s = %+v, %v, want %d", transport, found, err, want)
		}
	}
}
