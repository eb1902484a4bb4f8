package waybill_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
)

// sum asks for the sum of its numbers.
type sum struct{ A, B int }

func (sum) MessageName() string { return "sum" }

func answerSum(_ context.Context, q sum) (int, error) { return q.A + q.B, nil }

func TestQueryHasTheResultOfItsHandler(t *testing.T) {
	var passed []string
	b, _ := newBus(note("m", &passed))
	waybill.HandleQuery(b, "adder", func(ctx context.Context, q sum) (int, error) {
		if tenant, _ := waybill.EnvelopeFrom(ctx).Header("tenant"); tenant != "acme" || q.A == 0 {
			return 7, errBoom
		}
		return answerSum(ctx, q)
	})
	if got, err := waybill.Query[int](t.Context(), b, sum{2, 3}, waybill.Header("tenant", "acme")); got != 5 || err != nil {
		t.Errorf("Query = %d, %v, want 5", got, err)
	}
	if diff := cmp.Diff([]string{"+m", "-m"}, passed); diff != "" {
		t.Errorf("middleware (-want +got):\n%s", diff)
	}
	got, err := waybill.Query[int](t.Context(), b, waybill.NewEnvelope(sum{}, waybill.Received{Transport: "in"}, waybill.HandledBy("adder")))
	var failed *waybill.HandlersError
	if got != 0 || !errors.Is(err, errBoom) || !errors.As(err, &failed) || failed.Failed[0].Handler != "adder" {
		t.Errorf("Query of a failing handler = %d, %v, want its error and no result", got, err)
	}
	if err := received(t, b, sum{1, 1}, waybill.Header("tenant", "acme")); err != nil {
		t.Errorf("a query that was received: %v", err)
	}
}

func TestQueryWhoseHandlerFindsADuplicateFails(t *testing.T) {
	b, _ := newBus()
	waybill.HandleQuery(b, "adder", func(context.Context, sum) (int, error) { return 0, fmt.Errorf("sum known: %w", waybill.ErrDuplicate) })
	_, err := waybill.Query[int](t.Context(), b, sum{})
	const want = `adder: a query has no duplicates: return the result again, or another error than "sum known: duplicate"`
	var failed *waybill.HandlersError
	if !errors.As(err, &failed) || err.Error() != want {
		t.Errorf("Query = %v, want the error of the handler: %s", err, want)
	}
	if _, err := b.Dispatch(t.Context(), sum{}); err != nil {
		t.Errorf("Dispatch = %v, want nil: a duplicate of a message is a success", err)
	}
}

func TestQueryOfAnInterfaceMayBeNil(t *testing.T) {
	b, _ := newBus()
	waybill.HandleQuery(b, "none", func(context.Context, sum) (fmt.Stringer, error) { return nil, nil })
	if got, err := waybill.Query[fmt.Stringer](t.Context(), b, sum{}); got != nil || err != nil {
		t.Errorf("Query = %v, %v, want nil", got, err)
	}
}

// Messages and queries of a handler have their own results.
func TestQueryInsideAQueryHasItsOwnResult(t *testing.T) {
	b, out := newBus()
	waybill.HandleQuery(b, "adder", func(ctx context.Context, q sum) (int, error) {
		if q.B == 0 {
			return q.A, nil
		}
		inner, err := waybill.Query[int](ctx, b, sum{q.A + q.B, 0})
		if err != nil {
			return 0, err
		}
		if _, err := b.Dispatch(ctx, sum{1000, 0}); err != nil { // handled at once, and its result dropped
			return 0, err
		}
		if _, err := b.Dispatch(ctx, sum{2000, 0}, waybill.DispatchAfterCurrentBus{}); err != nil {
			return 0, err
		}
		_, err = b.Dispatch(ctx, followUp{}, waybill.DispatchAfterCurrentBus{})
		return 10 * inner, err
	})
	if got, err := waybill.Query[int](t.Context(), b, sum{2, 3}); got != 50 || err != nil || len(out.sent) != 1 {
		t.Errorf("Query = %d, %v with %v sent, want 50 and the follow-up", got, err, out.names())
	}
}

func TestQueriesWithoutOneResultAreRefused(t *testing.T) {
	ran := 0
	handle := func(b *waybill.Bus, name string) {
		waybill.Handle(b, name, func(context.Context, sum) error { ran++; return nil })
	}
	answer := func(b *waybill.Bus) {
		waybill.HandleQuery(b, "adder", func(ctx context.Context, q sum) (int, error) { ran++; return answerSum(ctx, q) })
	}
	for want, set := range map[string]func(*waybill.Bus) []waybill.Stamp{
		"it has no handler: register one with waybill.HandleQuery":                                   func(*waybill.Bus) []waybill.Stamp { return nil },
		`its handler "one" returns no result: register it with waybill.HandleQuery`:                  func(b *waybill.Bus) []waybill.Stamp { handle(b, "one"); return nil },
		"it has 2 handlers (one, two), and a query has one: use Dispatch, or register one alone":     func(b *waybill.Bus) []waybill.Stamp { handle(b, "one"); handle(b, "two"); return nil },
		"it is routed to out, and a query is answered in this process: use a bus without that route": func(b *waybill.Bus) []waybill.Stamp { answer(b); b.Route("*", "out"); return nil },
		"it is routed to elsewhere, and a query is answered in this process": func(b *waybill.Bus) []waybill.Stamp {
			answer(b)
			return []waybill.Stamp{waybill.TransportNames{"elsewhere"}}
		},
		"it waits for the end of the current message, by DispatchAfterCurrentBus, and a query is answered at": func(b *waybill.Bus) []waybill.Stamp {
			answer(b)
			return []waybill.Stamp{waybill.DispatchAfterCurrentBus{}}
		},
		"what is handled at once cannot wait": func(b *waybill.Bus) []waybill.Stamp { answer(b); return []waybill.Stamp{waybill.Delay(time.Second)} },
		"a bus keeps no keys":                 func(b *waybill.Bus) []waybill.Stamp { answer(b); return []waybill.Stamp{waybill.Unique{Key: "k"}} },
	} {
		b, out := newBus()
		if got, err := waybill.Query[int](t.Context(), b, sum{2, 3}, set(b)...); got != 0 || err == nil || !strings.Contains(err.Error(), want) || ran > 0 || len(out.sent) > 0 {
			t.Errorf("Query = %d, %v with %d handlers run and %v sent, want an error with %s", got, err, ran, out.names(), want)
		}
	}
	b, _ := newBus()
	answer(b)
	var refused *waybill.QueryError
	want := `waybill: bus main: query sum: its handler "adder" returns int, not string: use waybill.Query[int]`
	if _, err := waybill.Query[string](t.Context(), b, sum{}); !errors.As(err, &refused) || err.Error() != want {
		t.Errorf("Query of another type = %v, want %s", err, want)
	}
	if _, err := waybill.Query[int](t.Context(), b, &sum{}); err == nil || !strings.Contains(err.Error(), "not a pointer") {
		t.Errorf("Query of a pointer = %v", err)
	}
	cached := waybill.NewBus("main", waybill.Middleware{Name: "mute", Wrap: func(waybill.HandlerFunc) waybill.HandlerFunc {
		return func(context.Context, *waybill.Envelope) error { return nil }
	}})
	answer(cached)
	if _, err := waybill.Query[int](t.Context(), cached, sum{}); !errors.As(err, &refused) || !strings.Contains(err.Error(), "without calling the handler: have it return an error") {
		t.Errorf("Query behind a middleware that calls nothing = %v", err)
	}
	const one = `it has the handler "adder", and a query has one`
	wantPanic(t, "a second handler of a query", one, func() { handle(b, "second") })
	wantPanic(t, "a second query handler", one, func() { waybill.HandleQuery(b, "second", answerSum) })
	other, _ := newBus()
	handle(other, "adder")
	wantPanic(t, "a query with a handler", one, func() { waybill.HandleQuery(other, "second", answerSum) })
}
