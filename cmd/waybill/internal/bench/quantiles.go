package bench

import (
	"context"
	"fmt"
	"slices"
)

// compare measures the sides in rotating order. Ratios compare 99th percentiles.
func compare(ctx context.Context, opt Options, res Result, sides ...func(ctx context.Context) (quantiles, error)) (_ Result, err error) {
	of := make([][]quantiles, len(sides))
	for round := range opt.Rounds {
		for turn := range sides {
			who := (round + turn) % len(sides)
			q, err := sides[who](ctx)
			if err != nil {
				return res, fmt.Errorf("%s, round %d, %s: %w", res.Case, round+1, sideNames[who], err)
			}
			of[who] = append(of[who], q)
		}
		line := fmt.Sprintf("%s, round %d: p50 %.2f, p99 %.2f, slowest %.2f ms", res.Case, round+1, of[0][round].P50, of[0][round].P99, of[0][round].Slowest)
		for who, q := range of[1:] {
			line += fmt.Sprintf(", %s %.2f, %.2f, %.2f", sideNames[who+1], q[round].P50, q[round].P99, q[round].Slowest)
		}
		opt.say("%s", line)
	}
	res.Latency, res.YardstickLatency = medians(of[0]), medians(of[1])
	res.Ratio = res.Latency.P99 / res.YardstickLatency.P99
	if len(sides) > 2 {
		res.BareLatency = medians(of[2])
		res.BareRatio = res.Latency.P99 / res.BareLatency.P99
	}
	return res, nil
}

// quantiles are in milliseconds.
type quantiles struct {
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	// Slowest is the maximum.
	Slowest float64 `json:"slowest_ms"`
	// Drained is the arrival time of the load's last message, in seconds from the
	// start.
	Drained float64 `json:"load_published_s,omitempty"`
	// Pause is the longest gap between two messages of a key, where measured.
	Pause float64 `json:"longest_pause_ms,omitempty"`
}

// medians has the longest pause of all rounds.
func medians(rounds []quantiles) *quantiles {
	var p50, p99, slowest, drained []float64
	pause := 0.0
	for _, q := range rounds {
		p50, p99, pause = append(p50, q.P50), append(p99, q.P99), max(pause, q.Pause)
		slowest, drained = append(slowest, q.Slowest), append(drained, q.Drained)
	}
	return &quantiles{P50: median(p50), P99: median(p99), Slowest: median(slowest), Drained: median(drained), Pause: pause}
}

// quantilesOf returns the quantiles of durations in milliseconds, and sorts them.
func quantilesOf(took []float64) quantiles {
	slices.Sort(took)
	n := len(took)
	return quantiles{P50: took[n/2], P99: took[n*99/100], Slowest: took[n-1]}
}
