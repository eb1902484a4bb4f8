package config

import (
	"math"
	"time"
)

// Delays returns the delay before each retry, without jitter.
func (r Retry) Delays() []time.Duration {
	delays := make([]time.Duration, r.MaxRetries)
	delay := float64(r.Delay)
	for n := range delays {
		delays[n] = saturate(min(delay, float64(r.MaxDelay)))
		if delay < float64(r.MaxDelay) {
			delay *= max(r.Multiplier, 1)
		}
	}
	return delays
}

// Window returns the longest outage that the retries cover: the sum of all delays,
// without jitter.
func (r Retry) Window() time.Duration {
	window := 0.0
	delay := float64(r.Delay)
	for n := range r.MaxRetries {
		if delay >= float64(r.MaxDelay) || r.Multiplier <= 1 {
			// From here on all delays are equal.
			window += min(delay, float64(r.MaxDelay)) * float64(r.MaxRetries-n)
			break
		}
		window += delay
		delay *= r.Multiplier
	}
	return saturate(window)
}

// longest returns the window with the largest jitter in every delay.
func (r Retry) longest() time.Duration {
	return saturate(float64(r.Window()) * (1 + r.Jitter))
}

// saturate returns the nearest duration.
func saturate(nanoseconds float64) time.Duration {
	if nanoseconds >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(nanoseconds)
}
