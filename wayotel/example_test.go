package wayotel_test

import (
	"context"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayotel"
)

// An outbox, and a relay or worker alike, gets the tracer as its observer. The provider is that
// of the program, with an exporter such as otlptracehttp.
func ExampleNew() {
	ctx, spans := context.Background(), tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(spans))
	tracer := wayotel.New(provider)
	db := memory.NewDB()
	out, err := outbox.New(db, outbox.Config{To: "events", Observer: tracer})
	if err != nil {
		log.Fatal(err)
	}
	ctx, request := provider.Tracer("shop").Start(ctx, "POST /orders")
	err = out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
		_, err := tx.Dispatch(ctx, placed{ID: "o-7"})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	request.End()
	for _, span := range spans.GetSpans() {
		fmt.Println(span.Name)
	}
	fmt.Println(db.Pending("events")[0].Headers["traceparent"] != "")
	// Output:
	// create events
	// POST /orders
	// true
}
