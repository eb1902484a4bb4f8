package middleware_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/middleware"
)

func TestForWithoutAMatchPanics(t *testing.T) {
	defer func() {
		if got := fmt.Sprint(recover()); got != `middleware: For needs a match for "ordered"` {
			t.Errorf("panic %q, want one that names the middleware", got)
		}
	}()
	middleware.For(nil, middleware.Ordered())
}

func TestCorrelationReachesFollowUps(t *testing.T) {
	bus := waybill.NewBus("main", middleware.Correlation())
	var got *waybill.Envelope
	waybill.Handle(bus, "child", func(ctx context.Context, _ child) error { got = waybill.EnvelopeFrom(ctx); return nil })
	waybill.Handle(bus, "plain", func(ctx context.Context, _ plain) error {
		_, err := bus.Dispatch(ctx, child{}, waybill.DispatchAfterCurrentBus{})
		return err
	})
	if err := bus.Handle(t.Context(), waybill.NewEnvelope(plain{}, newID(t), waybill.MessageName("plain"), received)); err != nil {
		t.Fatal(err)
	}
	if _, ok := waybill.Last[waybill.CausationID](got); !ok {
		t.Error("the follow-up has no causation id")
	}
}
