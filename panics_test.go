package waybill_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
)

// bomb is a message whose decoding panics on the body of a stranger.
type bomb struct{}

func (bomb) MessageName() string { return "bomb" }
func (*bomb) UnmarshalJSON(data []byte) error {
	_ = data[:100]
	return nil
}

func TestPanicWhileDecodingIsAnUnrecoverableError(t *testing.T) {
	b := waybill.NewBus("main")
	waybill.Handle(b, "h", func(context.Context, bomb) error { return nil })
	err := b.HandleRecord(t.Context(), &waybill.Record{ID: newID(t), Name: "bomb", Body: []byte(`{}`)}, "in", 0)
	var decoding *waybill.DecodeError
	var panicked *waybill.PanicError
	if !errors.As(err, &decoding) || decoding.Name != "bomb" || !errors.As(err, &panicked) || !strings.Contains(string(panicked.Stack), "panics_test.go") {
		t.Fatalf("HandleRecord = %v, want a DecodeError around a PanicError with its stack", err)
	}
	if !waybill.IsUnrecoverable(err) {
		t.Error("the error is recoverable: another attempt would panic, too")
	}
}

func TestPanicOfMiddlewareIsTheErrorOfItsMessage(t *testing.T) {
	b := waybill.NewBus("main", waybill.Middleware{Name: "bad", Wrap: func(waybill.HandlerFunc) waybill.HandlerFunc {
		return func(context.Context, *waybill.Envelope) error { panic("boom") }
	}})
	waybill.Handle(b, "h", func(context.Context, placed) error { return nil })
	rec, _ := b.Serializer().Encode(waybill.NewEnvelope(placed{}, newID(t)))
	err := b.HandleRecord(t.Context(), rec, "in", 0)
	var panicked *waybill.PanicError
	if !errors.As(err, &panicked) || panicked.Value != "boom" || waybill.IsUnrecoverable(err) {
		t.Errorf("HandleRecord = %v, want the panic, as an error that another attempt may mend", err)
	}
}

// context.Background() lacks the state of the message.
func TestMiddlewareThatPassesAnotherContextOnIsNamed(t *testing.T) {
	b := waybill.NewBus("main", waybill.Middleware{Name: "detach", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(_ context.Context, env *waybill.Envelope) error { return next(context.Background(), env) }
	}})
	waybill.Handle(b, "h", func(context.Context, placed) error { return nil })
	if err := received(t, b, placed{}); err == nil || !strings.Contains(err.Error(), "a middleware passed another context on: derive it from") {
		t.Errorf("HandleRecord = %v, want an error that says what to do", err)
	}
}

// A sender that panics behind a handler fails that handler, as one that returns an
// error does.
func TestPanicOfAFollowUpIsTheErrorOfItsHandler(t *testing.T) {
	b := waybill.NewBus("main")
	b.AddSender("out", panicking{})
	b.Route("*", "out")
	waybill.Register[followUp](b.Types(), "")
	waybill.Handle(b, "h", func(ctx context.Context, _ placed) error {
		_, err := b.Dispatch(ctx, followUp{1}, waybill.DispatchAfterCurrentBus{})
		return err
	})
	rec, _ := b.Serializer().Encode(waybill.NewEnvelope(placed{}, newID(t)))
	err := b.HandleRecord(t.Context(), rec, "in", 0)
	var failed *waybill.HandlersError
	var panicked *waybill.PanicError
	if !errors.As(err, &failed) || !errors.As(err, &panicked) || len(failed.Failed) != 1 || failed.Failed[0].Handler != "h" || len(failed.Succeeded) != 0 {
		t.Errorf("HandleRecord = %v, want the panic as the failure of handler h", err)
	}
}

// A brokenError is nil behind an interface that is not: a classic mistake in Go.
type brokenError struct{ cause error }

func (e *brokenError) Error() string { return e.cause.Error() }
func (e *brokenError) Unwrap() error { return e.cause }

func broken() error {
	var err *brokenError
	return err
}

// A worker examines errors outside of the handlers, where a panic would end its process.
func TestErrorThatPanicsIsTheErrorOfItsMessage(t *testing.T) {
	ran := 0
	b := waybill.NewBus("main")
	waybill.Handle(b, "one", func(context.Context, placed) error { ran++; return nil })
	waybill.Handle(b, "two", func(context.Context, placed) error { return broken() })
	var failed *waybill.HandlersError
	var panicked *waybill.PanicError
	if err := received(t, b, placed{}); !errors.As(err, &failed) || !errors.As(err, &panicked) || len(failed.Succeeded) != 1 {
		t.Errorf("HandleRecord = %v, want the panic as the failure of handler two alone", err)
	}
	if _, err := b.Dispatch(t.Context(), placed{}); !errors.As(err, &panicked) {
		t.Errorf("Dispatch = %v, want the panic", err)
	}
	waybill.Upcast(b, func(old followUp) (unregistered, error) { return unregistered{}, broken() })
	if err := received(t, b, followUp{}); !errors.As(err, &panicked) || !waybill.IsUnrecoverable(err) {
		t.Errorf("HandleRecord = %v, want the panic of the upcaster's error", err)
	}
	b = waybill.NewBus("main", waybill.Middleware{Name: "bad", Wrap: func(waybill.HandlerFunc) waybill.HandlerFunc {
		return func(context.Context, *waybill.Envelope) error { return broken() }
	}})
	waybill.Handle(b, "h", func(context.Context, placed) error { return nil })
	if err := received(t, b, placed{}); !errors.As(err, &panicked) {
		t.Errorf("HandleRecord = %v, want the panic of the middleware's error", err)
	}
}

type panicking struct{}

func (panicking) Send(context.Context, *waybill.Record) error { panic("sender") }
func (panicking) Observe(context.Context, waybill.Event)      { panic("observer") }

func TestObserverThatPanicsLosesItsEventAlone(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	var seen told
	waybill.Observers{panicking{}, nil, &seen}.Observe(t.Context(), waybill.Event{Kind: waybill.Handled, Name: "order.placed"})
	if len(seen) != 1 {
		t.Errorf("the observer behind the one that panics saw %v, want the event", seen)
	}
	for _, want := range []string{"observer panicked", "event=handled", "message=order.placed", "panic=observer", "panics_test.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log lacks %q: %s", want, log.String())
		}
	}
}
