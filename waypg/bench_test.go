package waypg_test

import (
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

// BenchmarkEmptyPoll measures a relay's claim of an outbox without due rows.
func BenchmarkEmptyPoll(b *testing.B) {
	for _, part := range []outbox.Part{outbox.Keyed, outbox.Unkeyed, outbox.Retries} {
		b.Run(part.String(), func(b *testing.B) {
			db := open(b, testserver.Postgres, waypg.Config{})
			put(b, db, outbox.Config{}, order{"k", 0})
			drain(b, db, &recorder{}, outbox.RelayConfig{})
			var all []time.Duration
			for b.Loop() {
				start := time.Now()
				c := claimPart(b, db, part)
				all = append(all, time.Since(start))
				if len(c.Rows()) > 0 {
					b.Fatalf("%d rows", len(c.Rows()))
				}
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "µs-median")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "µs-p99")
		})
	}
}
