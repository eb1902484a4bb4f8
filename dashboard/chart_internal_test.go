package dashboard

import "testing"

func TestTimesOfChartsHaveNoExponent(t *testing.T) {
	for _, c := range []struct {
		seconds float64
		want    string
	}{{0, "0"}, {.0005, "0.5 ms"}, {.25, "250 ms"}, {.9994, "999 ms"}, {.9996, "1 s"}, {1, "1 s"}, {9.96, "10 s"}, {10, "10s"}, {90, "1m 30s"}} {
		if got := inSeconds(c.seconds); got != c.want {
			t.Errorf("%v s is written %q, want %q", c.seconds, got, c.want)
		}
	}
}
