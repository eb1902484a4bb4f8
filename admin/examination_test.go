package admin_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
)

func TestSkewForgivesTheRoundTrip(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	for _, c := range []struct {
		before, server, after float64
		skewed                bool
	}{
		{0, 0, 0, false}, {0, 1, 0, false}, {0, 1.1, 0, true}, {0, -1.1, 0, true}, {0, -0.9, 0, false},
		{0, 5, 10, false}, {0, 10.9, 10, false}, {0, 11.1, 10, true}, {0, -1.1, 10, true},
	} {
		if got := admin.Skew(at(c.before), at(c.server), at(c.after)); (len(got) == 1) != c.skewed {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}
