package waybill

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Backoff is the delay between attempts. The zero value waits 1, 3, 9, 27, 81, 243 and
// then 300 seconds, each 10 % more or less. No delay is longer than 100 years.
type Backoff struct {
	Delay      time.Duration // before the second attempt; zero means 1 s
	Multiplier float64       // zero means 3
	MaxDelay   time.Duration // zero means 5 min
	Jitter     float64       // share of the delay, 0 to 1; zero means 0.1, negative means none
	// MaxRetryAfter caps the delay of RetryAfter; zero means 1 h.
	MaxRetryAfter time.Duration
}

// Validate returns an error for a value that is out of range.
func (b Backoff) Validate() error {
	switch {
	case b.Delay < 0 || b.MaxDelay < 0 || b.MaxRetryAfter < 0:
		return fmt.Errorf("waybill: backoff: negative duration (%v, %v, %v)", b.Delay, b.MaxDelay, b.MaxRetryAfter)
	case math.IsNaN(b.Multiplier) || math.IsInf(b.Multiplier, 0) || math.IsNaN(b.Jitter):
		return fmt.Errorf("waybill: backoff: multiplier %v and jitter %v: want numbers", b.Multiplier, b.Jitter)
	case b.Multiplier != 0 && b.Multiplier < 1:
		return fmt.Errorf("waybill: backoff: multiplier %v is below 1", b.Multiplier)
	case b.Jitter > 1:
		return fmt.Errorf("waybill: backoff: jitter %v is above 1", b.Jitter)
	}
	return nil
}

// After returns the delay after the given number of failures (1 is the first), the
// last of which was err.
func (b Backoff) After(failures int, err error) time.Duration {
	if asked, ok := RetryDelay(err); ok {
		return min(max(asked, 0), cmp.Or(b.MaxRetryAfter, time.Hour), forever)
	}
	d := b.base(failures)
	jitter := cmp.Or(b.Jitter, 0.1)
	if jitter > 0 {
		d *= 1 + jitter*(2*rand.Float64()-1)
	}
	return time.Duration(min(d, float64(forever)))
}

// Longest returns MaxDelay or its default.
func (b Backoff) Longest() time.Duration { return min(cmp.Or(b.MaxDelay, 5*time.Minute), forever) }

// forever bounds all delays: with math.MaxInt64, for no limit, a jitter or the sum of two would
// be negative, and a failure retried at once, again and again.
const forever = 100 * 365 * 24 * time.Hour

func (b Backoff) base(failures int) float64 {
	factor := math.Pow(cmp.Or(b.Multiplier, 3), float64(max(failures, 1)-1))
	return min(float64(cmp.Or(b.Delay, time.Second))*factor, float64(b.Longest()))
}
