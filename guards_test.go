package waybill_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
)

func TestFollowUpOfSucceededHandlerSurvivesFailureOfAnother(t *testing.T) {
	b, out := newBus()
	fail := true
	waybill.Handle(b, "one", func(ctx context.Context, _ placed) error {
		_, err := b.Dispatch(ctx, followUp{1}, waybill.DispatchAfterCurrentBus{})
		return err
	})
	waybill.Handle(b, "two", func(context.Context, placed) error {
		if fail {
			return errBoom
		}
		return nil
	})
	rec, _ := b.Serializer().Encode(waybill.NewEnvelope(placed{}, newID(t)))
	var several *waybill.HandlersError
	errors.As(b.HandleRecord(t.Context(), rec, "in", 0), &several)
	rec.MarkHandled(several.Succeeded...)
	fail = false
	if err := b.HandleRecord(t.Context(), rec, "in", 1); err != nil {
		t.Fatal(err)
	}
	if len(out.sent) != 1 {
		t.Errorf("sent %v, want the follow-up of handler one", out.names())
	}
}

func TestFailedFollowUpDoesNotMarkTheParentsHandlers(t *testing.T) {
	b, _ := newBus()
	runs := 0
	waybill.Handle(b, "same", func(ctx context.Context, _ placed) error {
		runs++
		_, err := b.Dispatch(ctx, unregistered{}, waybill.DispatchAfterCurrentBus{})
		return err
	})
	failing := true
	done := 0
	waybill.Handle(b, "same", func(context.Context, unregistered) error { return nil })
	waybill.Handle(b, "other", func(context.Context, unregistered) error {
		if failing {
			return errBoom
		}
		done++
		return nil
	})
	rec, _ := b.Serializer().Encode(waybill.NewEnvelope(placed{}, newID(t)))
	err := b.HandleRecord(t.Context(), rec, "in", 0)
	var several *waybill.HandlersError
	if errors.As(err, &several) { // as worker.retry does
		rec.MarkHandled(several.Succeeded...)
	}
	failing = false
	if err := b.HandleRecord(t.Context(), rec, "in", 1); err != nil {
		t.Fatal(err)
	}
	if done != 1 {
		t.Errorf("parent ran %d times, the follow-up's handler succeeded %d times, want 1; error was %v", runs, done, err)
	}
}

func TestUnrecoverableHoldsAroundANestedHandlersError(t *testing.T) {
	nested := &waybill.HandlersError{Failed: []waybill.HandlerError{{Handler: "x", Err: errBoom}}}
	if !waybill.IsUnrecoverable(&waybill.HandlersError{Failed: []waybill.HandlerError{{Handler: "y", Err: waybill.Unrecoverable(fmt.Errorf("sub: %w", nested))}}}) {
		t.Error("a handler marked its error Unrecoverable, and it is not")
	}
}

func TestHandleTakesTheNameGivenByRegister(t *testing.T) {
	b := waybill.NewBus("main")
	waybill.Register[nameless](b.Types(), "thing.done")
	if p := panics(handleAny[nameless](b)); p != "" {
		t.Errorf("Handle of a type named by Register panics: %s", p)
	}
}

func TestRecordKeepsItsOwnCopyOfARawBody(t *testing.T) {
	body := []byte(`{"a":1}`)
	rec, _ := encode(t, waybill.RawMessage{Name: "raw", Body: body})
	copy(body, `{"b":2}`)
	if string(rec.Body) != `{"a":1}` {
		t.Errorf("body of the record became %s", rec.Body)
	}
}

func TestWhatIsTooDeepToDecodeIsNotEncoded(t *testing.T) {
	types := waybill.NewTypes()
	waybill.Register[deep](types, "")
	s := waybill.Serializer{Types: types}
	var v any
	for range 150 {
		v = []any{v}
	}
	rec, err := s.Encode(waybill.NewEnvelope(deep{v}, newID(t)))
	if err != nil {
		return
	}
	if _, err := s.Decode(rec); err != nil {
		t.Errorf("encoded without an error, and never to be decoded: %v", err)
	}
}

type deep struct{ V any }

func (deep) MessageName() string { return "deep" }

func TestStringsABrokerWouldRefuseAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		msg   any
		stamp waybill.Stamp
	}{
		"content type of 300 bytes":    {waybill.RawMessage{Name: "raw", ContentType: strings.Repeat("x", 300)}, waybill.BusName("")},
		"content type with a line end": {waybill.RawMessage{Name: "raw", ContentType: "a\r\nb"}, waybill.BusName("")},
		"correlation id of 300 bytes":  {placed{}, waybill.CorrelationID(strings.Repeat("x", 300))},
		"empty idempotency key":        {placed{}, waybill.IdempotencyKey("")},
	} {
		if _, err := encode(t, c.msg, c.stamp); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestLineEndsAreNoPartOfAULID(t *testing.T) {
	for _, s := range []string{"00000000000000\r0000000\r000", "01ARZ3NDEKTSV4RRFFQ69G5FA\n"} {
		func() {
			defer func() {
				if v := recover(); v != nil {
					t.Errorf("ParseMessageID(%q) panics: %v", s, v)
				}
			}()
			if id, err := waybill.ParseMessageID(s); err == nil {
				t.Errorf("ParseMessageID(%q) = %v", s, id)
			}
		}()
	}
}

// An envelope that a handler passes on is a dispatch: its handlers are not those that
// have succeeded before.
func TestEnvelopePassedOnIsHandledByAll(t *testing.T) {
	b, _ := newBus()
	ran := map[string]int{}
	for _, name := range []string{"one", "two"} {
		waybill.Handle(b, name, func(context.Context, placed) error {
			ran[name]++
			return nil
		})
	}
	env := waybill.NewEnvelope(placed{}, newID(t), waybill.Received{}, waybill.HandledBy("one"))
	if _, err := b.Dispatch(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	if ran["one"] != 1 || ran["two"] != 1 {
		t.Errorf("handlers ran %v times, want each once", ran)
	}
}

// A goroutine that a handler left behind dispatches after the run: nobody would send
// its follow-up later.
func TestFollowUpAfterTheRunIsSentAtOnce(t *testing.T) {
	b, out := newBus()
	var left context.Context
	waybill.Handle(b, "one", func(ctx context.Context, _ placed) error {
		left = ctx
		return nil
	})
	if err := received(t, b, placed{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Dispatch(left, followUp{1}, waybill.DispatchAfterCurrentBus{}); err != nil || len(out.sent) != 1 {
		t.Errorf("error %v, %d sent, want the follow-up sent at once", err, len(out.sent))
	}
}

// A handler of a raw message may decrypt it in place.
func TestRawBodyIsTheHandlersOwn(t *testing.T) {
	b := waybill.NewBus("main")
	var got []string
	for _, name := range []string{"first", "second"} {
		waybill.HandleRaw(b, name, "order.placed", func(_ context.Context, m waybill.RawMessage) error {
			got = append(got, string(m.Body))
			clear(m.Body)
			return errBoom
		})
	}
	rec := &waybill.Record{ID: newID(t), Name: "order.placed", Body: []byte(`{"n":1}`)}
	for range 2 { // the second time is a retry
		if err := b.HandleRecord(t.Context(), rec, "in", 0); !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
	}
	if _, err := b.Dispatch(t.Context(), waybill.RawMessage{Name: "order.placed", Body: rec.Body}); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	for _, body := range append(got, string(rec.Body)) {
		if body != `{"n":1}` {
			t.Errorf("a body is %s after a handler has changed its own", body)
		}
	}
	if len(got) != 6 {
		t.Errorf("%d runs, want 6", len(got))
	}
}
