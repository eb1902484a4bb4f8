package dashboard

import (
	"testing"
	"time"
)

func TestMomentsAreTimesOrAges(t *testing.T) {
	now := time.Date(2026, 11, 23, 15, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"2h": now.Add(-2 * time.Hour), "7d": now.AddDate(0, 0, -7), "1d12h": now.Add(-36 * time.Hour), "0": now,
		"2026-11-23": time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC),
	} {
		if got, err := parseMoment("since", text, now); err != nil || !got.Equal(want) {
			t.Errorf("parseMoment(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"d", "-1d", "-2h", "7d-1h", "7days", "10000d", "yesterday"} {
		if got, err := parseMoment("since", text, now); err == nil {
			t.Errorf("parseMoment(%q) = %v, want an error", text, got)
		}
	}
}
