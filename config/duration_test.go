package config

import (
	"math"
	"slices"
	"testing"
	"time"
)

func TestParseDurationKnowsDaysAndWeeks(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"30d": 720 * time.Hour, "2w": 336 * time.Hour, "1h30m": 90 * time.Minute, "1d12h": 36 * time.Hour,
		"1w1d1h": 193 * time.Hour, "1.5d": 36 * time.Hour, "-1d": -24 * time.Hour, "+1d": 24 * time.Hour,
		"0": 0, "0d": 0, "250ms": 250 * time.Millisecond, "106751d": 106751 * day,
		"-9223372036854775808ns": math.MinInt64,
	} {
		if got, err := ParseDuration(s); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", s, got, err, want)
		}
	}
}

func TestParseDurationRefusesWhatItCannotHold(t *testing.T) {
	for _, s := range []string{"", "5", "d", "1x", "1 d", "--1d", "1d-1h", "1d5", "1h0", "106752d", "15251w", "106751d24h", ".d", "1e3s", "１d"} {
		if got, err := ParseDuration(s); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", s, got)
		}
	}
}

// Some are out of range with days, none is unreadable.
func TestEveryDurationOfTheFileTakesDays(t *testing.T) {
	const file = `
database: sqlite://./x.db?busy_timeout=7d
transports:
  work: { dsn: queue://work?lease=7d, retry: { delay: 7d, max_delay: 7d } }
outbox: { to: work, idle_timeout: 7d, publish_deadline: 7d }
inbox: { retention: 700d }
workers: { work: { slow_handler: 7d } }
limits: { time: 7d, drain: 7d }
messages: { report.due: {} }
schedules: { report: { message: report.due, every: 7d } }
`
	_, err := Parse("w.yaml", []byte(file), nil)
	var got []string
	for _, e := range unwrapAll(err) {
		got = append(got, e.Path+": "+e.Problem)
	}
	want := []string{
		"outbox.idle_timeout: 7d is not between 1s and 1h",
		"outbox.publish_deadline: 7d is not between 1s and 1h",
	}
	if !slices.Equal(got, want) {
		t.Errorf("problems are %q, want %q", got, want)
	}
}

func TestFormatDurationIsShort(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0s": 0, "30d": 30 * day, "14d": 2 * week, "36h": 36 * time.Hour, "5m": 5 * time.Minute, "1h30m": 90 * time.Minute,
		"1h0m5s": time.Hour + 5*time.Second, "1.5s": 1500 * time.Millisecond, "10m": 10 * time.Minute, "-1d": -day,
	} {
		if got := FormatDuration(d); got != want {
			t.Errorf("FormatDuration(%d) = %q, want %q", d, got, want)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"30d", "1h30m", "1.5d", "-2w3d", "0", ".5h", "1h0"} {
		f.Add(s, int64(90*time.Minute))
	}
	f.Fuzz(func(t *testing.T, s string, n int64) {
		got, err := ParseDuration(s)
		if want, stdErr := time.ParseDuration(s); stdErr == nil && (err != nil || got != want) {
			t.Errorf("ParseDuration(%q) = %v, %v, but time.ParseDuration is %v", s, got, err, want)
		}
		if back, err := ParseDuration(FormatDuration(time.Duration(n))); err != nil || int64(back) != n {
			t.Errorf("%d becomes %q becomes %d, %v", n, FormatDuration(time.Duration(n)), back, err)
		}
	})
}
