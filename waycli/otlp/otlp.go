// Package otlp sends the traces of the commands of waycli to a collector of OpenTelemetry, by
// the standard environment variables: for waycli.App.Traces.
package otlp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/wayotel"
)

// Traces returns a tracer that exports by OTLP over HTTP if OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, and nil otherwise. The other variables of the
// OpenTelemetry SDK apply, such as OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and
// OTEL_SDK_DISABLED; service is the name without them. The provider becomes the global one, so
// that the program's own spans are of the same traces. Shutdown sends what is left.
func Traces(ctx context.Context, service string, log *slog.Logger) (tracer waybill.Tracer, shutdown func(context.Context) error, err error) {
	endpoint := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if endpoint == "" || os.Getenv("OTEL_TRACES_EXPORTER") == "none" || os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return nil, nil, nil
	}
	if protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf"); protocol != "http/protobuf" {
		return nil, nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q: this program speaks http/protobuf", protocol)
	}
	client, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, nil, err
	}
	// No detector of the process: its arguments may have a DSN.
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(attribute.String("service.name", service)), resource.WithFromEnv())
	if err != nil {
		return nil, nil, err
	}
	provider := trace.NewTracerProvider(trace.WithBatcher(&exporter{SpanExporter: client, log: log}), trace.WithResource(about))
	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	log.LogAttrs(ctx, slog.LevelInfo, "traces are exported")
	return wayotel.New(provider), provider.Shutdown, nil
}

// An exporter logs an outage of the collector as one line when it begins and one when it ends.
type exporter struct {
	trace.SpanExporter
	log  *slog.Logger
	lost atomic.Int64 // spans of this outage
}

// ExportSpans implements trace.SpanExporter. Spans that the collector does not take are lost.
func (e *exporter) ExportSpans(ctx context.Context, spans []trace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	switch n := int64(len(spans)); {
	case err == nil:
		if lost := e.lost.Swap(0); lost > 0 {
			e.log.LogAttrs(ctx, slog.LevelInfo, "traces are exported again", slog.Int64("lost_spans", lost))
		}
	case e.lost.Add(n) == n:
		e.log.LogAttrs(ctx, slog.LevelWarn, "traces not exported, they are lost until the collector answers", slog.Any("err", err))
	}
	return nil
}
