package docs_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/waytest"
	"github.com/waybill-go/waybill/worker"
)

var (
	errBusy   = errors.New("busy")
	errNoCard = errors.New("no such card")
)

func charge(id string) error {
	return map[string]error{"o-1": errBusy, "o-2": errNoCard}[id]
}

func Example_handlerErrors() {
	ctx := context.Background()
	bus := waybill.NewBus("billing")

	waybill.Handle(bus, "charge", func(ctx context.Context, m OrderPlaced) error {
		err := charge(m.OrderID)
		switch {
		case errors.Is(err, errBusy):
			return waybill.RetryAfter(err, 30*time.Second) // in place of the next delay
		case errors.Is(err, errNoCard):
			return waybill.Unrecoverable(err) // no retries: a dead letter, or a parked key
		}
		return err // nil, or retried after 1, 3, 9, 27, 81, 243, 300, 300 s
	})

	for _, id := range []string{"o-1", "o-2", "o-3"} {
		err := bus.HandleRecord(ctx, encoded(OrderPlaced{id, 100}), "events", 0)
		fmt.Println(waybill.Backoff{}.After(1, waybill.RetryAfter(errBusy, 30*time.Second)), waybill.IsUnrecoverable(err), err)
	}
	// Output:
	// 30s false charge: busy
	// 30s true charge: no such card
	// 30s false <nil>
}

func Example_workerRetries() {
	ctx := context.Background()
	db, remove := openShop(ctx)
	defer remove()
	bus, queue := waybill.NewBus("billing"), memory.NewDB().Queue("billing")
	waybill.Handle(bus, "charge", func(ctx context.Context, m OrderPlaced) error { return errBusy })
	check(queue.Send(ctx, encoded(OrderPlaced{"o-7", 4200})))

	w, err := worker.New(bus, queue, worker.Config{
		Transport:        "billing",
		Store:            db, // waypg, waymysql, waysqlite: retries and dead letters
		Retry:            waybill.Backoff{Delay: time.Millisecond, Multiplier: 2, MaxDelay: time.Second},
		MaxRetries:       2,
		OnExhausted:      worker.Skip, // the message becomes a dead letter; the default parks its key
		FailureTransport: "failed_billing",
		Limit:            3, // attempts, for this example
	})

	check(err)
	check(w.Run(ctx))
	failed, err := db.Failed(ctx, admin.FailedQuery{Transport: "billing"})
	check(err)
	for _, m := range failed {
		fmt.Println(m.FailureTransport, m.Name, m.Key, m.Failures, m.LastError)
	}
	// Output: failed_billing order.placed o-7 3 charge: busy
}

func Example_exhaustedPolicy() {
	ctx := context.Background()
	db, remove := openShop(ctx)
	defer remove()
	out, err := outbox.New(db, outbox.Config{To: "events"})
	check(err)
	broker := refusing{}

	relay, err := outbox.NewRelay(db, broker, outbox.RelayConfig{
		Transport:   "events",
		Retry:       waybill.Backoff{Delay: time.Second, Multiplier: 2, MaxDelay: 5 * time.Minute},
		MaxAttempts: 1,
		OnExhausted: func(messageName string) outbox.Policy {
			if messageName == "receipt.send" {
				return outbox.Skip // a dead letter
			}
			return outbox.Park // its key waits for an operator
		},
		Drain: true,
	})

	check(err)
	check(out.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
		_, err := tx.Dispatch(ctx, OrderPlaced{"o-7", 4200})
		if err != nil {
			return err
		}
		_, err = tx.Dispatch(ctx, SendReceipt{"o-7"})
		return err
	}))
	check(relay.Run(ctx))
	stats, err := db.OutboxStats(ctx)
	check(err)
	fmt.Println(stats[0].BlockedKeys, "key parked,", stats[0].Failed, "dead letter")
	// Output: 1 key parked, 1 dead letter
}

// refusing is a broker that refuses each message.
type refusing struct{ waytest.NoTraits }

func (refusing) Publish(_ context.Context, items []outbox.Item, results chan<- outbox.Result) {
	for _, item := range items {
		results <- outbox.Result{Seq: item.Seq, Err: errors.New("refused")}
	}
}
