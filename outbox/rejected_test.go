package outbox

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill"
)

// A rejected record is tried again soon, because a full queue may have room at any
// moment, and ever more slowly up to a second; it never exhausts its key.
func TestRejectedRecordIsRetriedSoon(t *testing.T) {
	cfg, err := RelayConfig{MaxAttempts: 3, OnExhausted: func(string) Policy { return Park }}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for failures, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		f := cfg.decide(Failure{Row: ClaimedRow{Record: &waybill.Record{Key: "k"}, Failures: failures}, Err: &RejectedError{Reason: "full"}})
		want *= time.Millisecond
		if f.Exhausted || f.RetryIn < want*9/10 || f.RetryIn > want*11/10 {
			t.Errorf("after %d failures: retried in %v, exhausted %v, want about %v", failures+1, f.RetryIn, f.Exhausted, want)
		}
	}
}
