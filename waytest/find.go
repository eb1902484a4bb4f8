package waytest

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

// messagesAreFoundByIDAndCause has a dead letter, an effect of it in each other table, and
// messages of the same conversation with another cause.
func messagesAreFoundByIDAndCause[TX any](t *testing.T, s *fixture[TX]) {
	db, ok := s.Store.(admin.MessageFinder)
	if !ok {
		t.Skip("the store is no admin.MessageFinder")
	}
	out := s.outbox(outbox.Config{})
	s.put(out, named("x", order{"d", 0}))
	c := s.claim(manyRows)
	letter := s.row(c, order{"d", 0})
	cause := letter.Record.ID
	s.settle(c, nil, outbox.Failure{Row: letter, Err: errRefused, Policy: outbox.Skip, Exhausted: true})
	by, conversation := waybill.CausationID(cause.String()), waybill.CorrelationID("c-1")
	s.put(out, waybill.NewEnvelope(order{"other", 1}, conversation), waybill.NewEnvelope(order{"k", 2}, by, conversation),
		waybill.NewEnvelope(order{"", 3}, by, conversation), waybill.NewEnvelope(order{"l", 4}, by, conversation, waybill.Delay(time.Hour)))
	s.put(out, waybill.NewEnvelope(order{"other", 5}, conversation))
	want := []string{"failed t x d: by , of ", "outbox t order.placed k: by cause, of c-1", "outbox t order.placed : by cause, of c-1", "delayed t order.placed l: by cause, of c-1"}
	received := func(key string) *waybill.Record {
		rec := arrival(t, order{key, 5})
		rec.Headers = map[string]string{waybill.HeaderCausationID: string(by), waybill.HeaderCorrelationID: string(conversation)}
		return rec
	}
	if s.Queue != nil {
		try(t, "Send", s.queue("work", 0).Send(t.Context(), received("q")))
		want = append(want, "queue queue://work order.placed q: by cause, of c-1")
	}
	if s.Retries != nil {
		q, err := s.Retries("billing", 0)
		if err != nil {
			t.Fatal(err)
		}
		try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: received("r")}, Attempt: &worker.Attempt{At: time.Now().UTC()}, Delay: time.Hour}))
		want = append(want, "retries billing order.placed r: by cause, of c-1")
	}
	slices.Sort(want)
	found, err := db.FindMessages(t.Context(), cause, 100)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, m := range found {
		if m.CausationID == cause.String() {
			m.CausationID = "cause"
		}
		if m.Transport == outbox.DefaultTransport {
			m.Transport = "t"
		}
		got = append(got, m.Source+" "+m.Transport+" "+m.Name+" "+m.Key+": by "+m.CausationID+", of "+m.CorrelationID)
		if m.ID.IsZero() || m.Row <= 0 || time.Since(m.CreatedAt) > time.Hour {
			t.Errorf("incomplete: %+v", m)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("FindMessages (-want +got):\n%s", diff)
	}
	if found, err := db.FindMessages(t.Context(), cause, 1); err != nil || len(found) >= len(want) {
		t.Errorf("FindMessages of one message a table = %+v, %v", found, err)
	}
}
