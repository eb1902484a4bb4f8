package dashboard

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// The clock of the database, which sets the times of a report, may be a minute off.
func TestStateOfARelayIsByTheClockOfItsDatabase(t *testing.T) {
	for _, off := range []time.Duration{-time.Minute, time.Minute} {
		seen := time.Now().Add(off)
		since := seen.Add(-5 * time.Second)
		for _, c := range []struct {
			relay admin.Relay
			want  string
		}{
			{admin.Relay{SeenAt: seen, AgeSeconds: 1}, "works"},
			{admin.Relay{SeenAt: seen, AgeSeconds: 30}, "silent for 30s"},
			{admin.Relay{SeenAt: seen, AgeSeconds: 1, Problem: "away", Since: &since}, "cannot publish for 6.0s: away"},
		} {
			if got := stateOfRelay(c.relay); got.State != c.want {
				t.Errorf("a clock %v off: %q, want %q", off, got.State, c.want)
			}
		}
	}
}
