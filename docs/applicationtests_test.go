package docs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

// place is code of the application, for any database.
func place[TX any](ctx context.Context, out *outbox.Outbox[TX], o OrderPlaced, pay func() error) error {
	return out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[TX]) error {
		if _, err := tx.Dispatch(ctx, o); err != nil {
			return err
		}
		return pay()
	})
}

func TestDeclinedOrderSendsNothing(t *testing.T) {
	db := memory.NewDB()
	out, err := outbox.New(db, outbox.Config{To: "events"})
	if err != nil {
		t.Fatal(err)
	}
	declined := errors.New("card declined")
	if err := place(t.Context(), out, OrderPlaced{"o-7", 4200}, func() error { return declined }); !errors.Is(err, declined) {
		t.Errorf("place = %v, want %v", err, declined)
	}
	for _, rec := range db.Pending("events") {
		t.Errorf("%s was dispatched: %s", rec.Name, rec.Body)
	}
}

func TestSecondDeliveryBillsNothing(t *testing.T) {
	bus, billed := waybill.NewBus("billing"), 0
	inbox.Handle(bus, memory.NewDB(), "billing", func(_ context.Context, tx *memory.Tx, m OrderPlaced) error {
		tx.OnCommit(func() { billed += m.Cents })
		return nil
	})
	id, err := waybill.NewMessageID()
	if err != nil {
		t.Fatal(err)
	}
	rec, err := bus.Serializer().Encode(waybill.NewEnvelope(OrderPlaced{"o-7", 4200}, id))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := bus.HandleRecord(t.Context(), rec, "events", 0); err != nil {
			t.Fatal(err)
		}
	}
	if billed != 4200 {
		t.Errorf("billed %d cents, want 4200", billed)
	}
}

func TestReminderComesAfterADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a day costs no time in here
		bus, queue, start := waybill.NewBus("shop"), memory.NewDB().Queue("mail"), time.Now()
		bus.AddSender("mail", queue)
		bus.Route("*", "mail")
		if _, err := bus.Dispatch(t.Context(), SendReceipt{"o-7"}, waybill.Delay(24*time.Hour)); err != nil {
			t.Fatal(err)
		}
		waybill.Handle(bus, "remind", func(context.Context, SendReceipt) error {
			if waited := time.Since(start); waited < 24*time.Hour {
				t.Errorf("the reminder came after %v", waited)
			}
			return nil
		})
		w, err := worker.New(bus, queue, worker.Config{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
