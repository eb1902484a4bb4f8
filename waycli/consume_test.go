package waycli

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
)

func TestRetryOfKeepsWhatZeroMeans(t *testing.T) {
	b, failures := retryOf(config.Retry{MaxRetries: 5, Delay: 2 * time.Second, Multiplier: 2, MaxDelay: time.Minute, Jitter: 0})
	if want := (waybill.Backoff{Delay: 2 * time.Second, Multiplier: 2, MaxDelay: time.Minute, Jitter: -1}); b != want || failures != 5 {
		t.Errorf("got %+v and %d, want %+v and 5", b, failures, want)
	}
	for n, want := range map[int]time.Duration{1: 2 * time.Second, 2: 4 * time.Second, 9: time.Minute} {
		if got := b.After(n, nil); got != want {
			t.Errorf("After(%d) = %v, want %v: no jitter was asked for", n, got, want)
		}
	}
	// No retries: the first failure has the longest delay.
	b, _ = retryOf(config.Retry{MaxRetries: 0, Delay: time.Second, Multiplier: 3, MaxDelay: time.Minute})
	if got := b.After(1, nil); got != time.Minute {
		t.Errorf("After(1) = %v, want %v", got, time.Minute)
	}
}
