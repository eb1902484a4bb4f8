package waybill_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
)

func TestEventsAreLoggedALineAMessage(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	id, err := waybill.ParseMessageID("01890a5d-ac96-774b-bcce-b302099a8057")
	if err != nil {
		t.Fatal(err)
	}
	of := func(kind waybill.EventKind) waybill.Event {
		return waybill.Event{Kind: kind, ID: id, Name: "order.placed", Key: "o-7", Transport: "events", Handler: "billing", Failures: 1, Duration: 5 * time.Millisecond}
	}
	failed := of(waybill.Handled)
	failed.Err = errors.New("card declined")
	brokered := of(waybill.Published)
	brokered.Exchange, brokered.RoutingKey = "orders", "order.placed"
	unkeyed := of(waybill.Dispatched)
	unkeyed.Key = ""
	observer := waybill.LogEvents(log, slog.LevelDebug)
	for _, e := range []waybill.Event{of(waybill.Dispatched), unkeyed, of(waybill.Published), brokered, of(waybill.Handled), failed, of(waybill.Duplicate), of(waybill.Retrying), of(waybill.KeyBlocked)} {
		observer.Observe(t.Context(), e)
	}
	message := " message=order.placed id=01890a5d-ac96-774b-bcce-b302099a8057"
	want := "level=DEBUG msg=dispatched" + message + " key=o-7 transport=events\n" +
		"level=DEBUG msg=dispatched" + message + " transport=events\n" +
		"level=DEBUG msg=published" + message + " key=o-7 transport=events age=5ms\n" +
		"level=DEBUG msg=published" + message + " key=o-7 transport=events exchange=orders routing_key=order.placed age=5ms\n" +
		"level=DEBUG msg=handled" + message + " key=o-7 transport=events attempt=2 duration=5ms\n" +
		"level=DEBUG msg=\"attempt failed\"" + message + " key=o-7 transport=events attempt=2 duration=5ms err=\"card declined\"\n" +
		"level=DEBUG msg=duplicate" + message + " key=o-7 handler=billing\n"
	if got := out.String(); got != want {
		t.Errorf("logged:\n%s\nwant:\n%s", got, want)
	}
}

// As all other logs do.
func TestEventsWithoutALogAreDiscarded(t *testing.T) {
	waybill.LogEvents(nil, slog.LevelInfo).Observe(t.Context(), waybill.Event{Kind: waybill.Dispatched})
}

func TestEventsBelowTheLevelOfTheLogCostNoAllocation(t *testing.T) {
	observer := waybill.LogEvents(slog.New(slog.DiscardHandler), slog.LevelDebug)
	e := waybill.Event{Kind: waybill.Published, Name: "order.placed"}
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() { observer.Observe(ctx, e) }); n != 0 {
		t.Errorf("%v allocations for an event that is not logged, want 0", n)
	}
}
