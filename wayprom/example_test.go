package wayprom_test

import (
	"context"
	"fmt"
	"log"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayprom"
)

// An outbox, and a relay or worker alike, gets the metrics as its observer; promhttp.Handler
// serves the registry.
func ExampleNew() {
	registry := prometheus.NewRegistry()
	metrics, err := wayprom.New(registry)
	if err != nil {
		log.Fatal(err)
	}
	out, err := outbox.New(memory.NewDB(), outbox.Config{To: "events", Observer: metrics})
	if err != nil {
		log.Fatal(err)
	}
	err = out.InTx(context.Background(), func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
		_, err := tx.Dispatch(ctx, placed{ID: "o-7"}, waybill.Header("tenant", "acme"))
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	found, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(found[0].GetName(), found[0].GetMetric()[0].GetCounter().GetValue())
	// Output: waybill_dispatched_total 1
}
