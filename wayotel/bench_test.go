package wayotel_test

import (
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/wayotel"
)

// BenchmarkTracer is the time of a tracer for one step of a message, with spans that are
// batched and discarded.
func BenchmarkTracer(b *testing.B) {
	tracer := wayotel.New(trace.NewTracerProvider(trace.WithBatcher(tracetest.NewNoopExporter())))
	for name, flags := range map[string]string{"unsampled": "00", "sampled": "01"} {
		headers := map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-" + flags}
		for _, step := range []waybill.EventKind{waybill.Published, waybill.Handled} {
			b.Run(step.String()+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				rec := &waybill.Record{Name: "order.placed", Headers: headers}
				for b.Loop() {
					ctx := tracer.Begin(b.Context(), step, "events", rec)
					tracer.Observe(ctx, waybill.Event{Kind: step, Transport: "events", Record: rec})
				}
			})
		}
	}
}
