package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// A race lets waybill and its yardstick take turns, so that both meet the same
// machine: a round is pairs of slices, first, second, second, first, and so on.
type race struct {
	waybill, yardstick side
	pairs              int                             // of slices in a round
	round              func(ctx context.Context) error // not timed, before each round; may be nil
	slice              func(ctx context.Context) error // not timed, before each slice; may be nil
	allocs             func() float64                  // of one call of waybill's side; may be nil
	close              func() error                    // may be nil
}

// A side does its work once and returns how much that was.
type side func(ctx context.Context) (done int, err error)

// goal is the wanted ratio. The zero value means none.
type goal struct {
	atLeast float64 // rates: waybill's through the yardstick's
	atMost  float64 // times: waybill's through the yardstick's
}

func (g goal) String() string {
	switch {
	case g.atLeast > 0:
		return fmt.Sprintf(">= %.2f", g.atLeast)
	case g.atMost > 0:
		return fmt.Sprintf("<= %.0f", g.atMost)
	}
	return ""
}

// measure runs a benchmark in a new temporary directory.
func (b benchmark) measure(ctx context.Context, rounds int) (Result, error) {
	dir, err := os.MkdirTemp("", "waybill-bench-")
	if err != nil {
		return Result{}, err
	}
	r, err := b.open(ctx, dir)
	if err != nil {
		return Result{}, errors.Join(err, os.RemoveAll(dir))
	}
	res := Result{Case: b.name, Database: b.database, Rounds: rounds, Unit: b.unit, Target: b.goal.String()}
	err = r.run(ctx, rounds, &res)
	if r.close != nil {
		err = errors.Join(err, r.close())
	}
	return res, errors.Join(err, os.RemoveAll(dir))
}

func (r *race) run(ctx context.Context, rounds int, res *Result) error {
	var rates, yardsticks, ratios []float64
	for i := range rounds + 1 {
		rate, yardstick, err := r.oneRound(ctx, i)
		if err != nil {
			return err
		}
		if i == 0 {
			continue // warms up: caches, statements, the file's size
		}
		rates, yardsticks = append(rates, rate), append(yardsticks, yardstick)
		ratio := rate / yardstick
		if res.Unit == "call" {
			ratio = yardstick / rate // of times
		}
		ratios = append(ratios, ratio)
	}
	res.Rate, res.YardstickRate, res.Ratio = median(rates), median(yardsticks), median(ratios)
	res.Min, res.Max = slices.Min(ratios), slices.Max(ratios)
	if r.allocs != nil {
		n := r.allocs()
		res.Allocs = &n
	}
	return nil
}

// oneRound returns both rates of a round. Odd rounds begin with the other side.
func (r *race) oneRound(ctx context.Context, number int) (rate, yardstick float64, err error) {
	if r.round != nil {
		if err := r.round(ctx); err != nil {
			return 0, 0, err
		}
	}
	sides := [2]side{r.waybill, r.yardstick}
	var done [2]int
	var took [2]time.Duration
	for turn := range 2 * r.pairs {
		who := (number + turn + turn/2) % 2 // 0, 1, 1, 0, 0, 1, 1, 0
		if r.slice != nil {
			if err := r.slice(ctx); err != nil {
				return 0, 0, err
			}
		}
		start := time.Now()
		n, err := sides[who](ctx)
		took[who] += time.Since(start)
		done[who] += n
		if err != nil {
			return 0, 0, err
		}
	}
	return float64(done[0]) / took[0].Seconds(), float64(done[1]) / took[1].Seconds(), nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[mid-1] + sorted[mid]) / 2
	}
	return sorted[mid]
}
