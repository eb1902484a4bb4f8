package waycli

import (
	"testing"

	"github.com/waybill-go/waybill/history"
)

// Three million messages that an outage has held up for an hour are a sum of 10^16 microseconds.
func TestMeansOfALongOutageDoNotOverflow(t *testing.T) {
	const messages, hour, halfSecond = 3_000_000, 3_600_000_000, 500_000
	for _, c := range []struct {
		counts              history.Counts
		publishing, handled float64
	}{
		{history.Counts{}, 0, 0},
		{history.Counts{Published: 2, PublishMicros: 3, Handled: 4, HandlingMicros: 4 * halfSecond}, .0000015, .5},
		{history.Counts{Published: messages, PublishMicros: messages * hour, Handled: messages, HandlingMicros: messages * hour}, 3600, 3600},
	} {
		got := resultOf(history.Row{Counts: c.counts})
		if got.PublishMean != c.publishing || got.HandlerMean != c.handled {
			t.Errorf("the means of %d and %d messages are %v s and %v s, want %v s and %v s", c.counts.Published, c.counts.Handled, got.PublishMean, got.HandlerMean, c.publishing, c.handled)
		}
	}
}
