package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

// A Growth says how a figure changed from little to much: the median of claims
// in milliseconds, or a process's memory in MiB.
type Growth struct {
	Unit   string  `json:"unit"`
	From   float64 `json:"from"`
	To     float64 `json:"to"`
	Factor float64 `json:"factor"`
	// MaxTo and MaxFactor are upper limits, where there are any.
	MaxTo     float64 `json:"max_to,omitempty"`
	MaxFactor float64 `json:"max_factor,omitempty"`
}

// Claim measures whether claims, empty polls and memory stay as they are when
// more rows wait or have passed. Its ratio is waybill's growth through the
// yardstick's: less is better.
func Claim(ctx context.Context, opt Options) ([]Result, error) {
	var results []Result
	for _, c := range []struct {
		name string
		run  func(ctx context.Context, opt Options) ([]Result, error)
	}{{"growth", growth}, {"snapshot", snapshot}, {"memory", memory}} {
		if !opt.Wants(c.name) {
			continue
		}
		more, err := c.run(ctx, opt)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		results = append(results, more...)
	}
	return results, nil
}

// A backlog is the rows that wait on one side, in one backend.
type backlog struct {
	backend
	opt  Options
	from table
	next int // the number of the next row to load
}

func (b *backlog) fill(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	err := b.load(ctx, rows{first: b.next, n: n, keys: b.opt.Keys}, b.from)
	b.next += n
	return err
}

// claim takes a batch and deletes it, as if it were published.
func (b *backlog) claim(ctx context.Context) (n int, took time.Duration, err error) {
	start := time.Now()
	if b.from == ideal.table {
		n, err = b.byHand(ctx, ideal, nil, "")
		return n, time.Since(start), err
	}
	n, err = b.settle(ctx, outbox.Keyed, nil)
	return n, time.Since(start), err
}

// settle claims a batch and settles it: all rows as published or, with a fail, only
// the failures that fail returns.
func (b *backlog) settle(ctx context.Context, part outbox.Part, fail func(row outbox.ClaimedRow) (outbox.Failure, bool)) (n int, err error) {
	claim, err := b.store().Claim(ctx, outbox.DefaultTransport, part, outbox.ClaimLimit{Rows: b.opt.batch(), Bytes: 2 << 20})
	if err != nil || len(claim.Rows()) == 0 {
		return 0, err
	}
	if fail == nil {
		return len(claim.Rows()), claim.Settle(ctx, claim.Rows(), nil)
	}
	var failed []outbox.Failure
	for _, row := range claim.Rows() {
		if f, ok := fail(row); ok {
			failed = append(failed, f)
		}
	}
	return len(claim.Rows()), claim.Settle(ctx, nil, failed)
}

// samples is how many claims a median is of.
const samples = 20

// claims returns the median of claims, and loads as many rows as each has taken.
func (b *backlog) claims(ctx context.Context) (float64, error) {
	took := make([]time.Duration, samples)
	for i := range took {
		var n int
		var err error
		if n, took[i], err = b.claim(ctx); err != nil {
			return 0, err
		}
		if n == 0 {
			return 0, errors.New("a claim found nothing although rows wait")
		}
		if err := b.fill(ctx, n); err != nil {
			return 0, err
		}
	}
	return p50(took), nil
}

// p50 returns the median of durations, in milliseconds.
func p50(took []time.Duration) float64 {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[len(sorted)/2].Seconds() * 1000
}

// growth measures claims with opt.Rows rows waiting against a hundredth of them.
func growth(ctx context.Context, opt Options) (_ []Result, err error) {
	var sides [2][2]*backlog // waybill and yardstick, few and many
	for size, n := range []int{max(opt.Rows/100, 1), opt.Rows} {
		p, err := newBackend(ctx, opt)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, p.close()) }()
		for who := range sides {
			from := []table{outboxTable, ideal.table}[who]
			sides[who][size] = &backlog{p, opt, from, n + 1}
			opt.say("growth: loading %d rows", n)
			if err := loadAll(ctx, p, rows{first: 1, n: n, keys: opt.Keys}, from); err != nil {
				return nil, err
			}
		}
	}
	var t tally
	for round := range opt.Rounds + 1 {
		var took [2][2]float64
		for turn := range 4 {
			turn = (turn + round) % 4
			b := sides[turn%2][turn/2]
			if err := b.tidy(ctx, b.from); err != nil {
				return nil, err
			}
			if took[turn%2][turn/2], err = b.claims(ctx); err != nil {
				return nil, err
			}
		}
		if round > 0 { // the first warms up
			t.add(opt, "growth", took)
		}
	}
	res := Result{Case: fmt.Sprintf("claim, %d rows waiting against %d", opt.Rows, max(opt.Rows/100, 1)), Database: sides[0][0].database(),
		Keys: opt.Keys, Workers: 1, Ordering: "strict", Rounds: opt.Rounds, Buckets: opt.buckets(), Batch: opt.Batch, Rows: opt.Rows}
	t.tell(&res)
	res.Growth.MaxFactor = 2
	return []Result{res}, nil
}

// A tally gathers the rounds of a growth: from and to, of waybill and yardstick.
type tally struct {
	took   [2][2][]float64
	ratios []float64
}

func (t *tally) add(opt Options, what string, took [2][2]float64) {
	for who := range took {
		for size := range took[who] {
			t.took[who][size] = append(t.took[who][size], took[who][size])
		}
	}
	ratio := took[0][1] / took[0][0] / (took[1][1] / took[1][0])
	t.ratios = append(t.ratios, ratio)
	opt.say("%s, round %d: %.2f -> %.2f ms against %.2f -> %.2f ms, %.2f", what, len(t.ratios), took[0][0], took[0][1], took[1][0], took[1][1], ratio)
}

// tell puts the medians of the rounds into a result.
func (t *tally) tell(res *Result) {
	res.Ratio, res.Min, res.Max = median(t.ratios), slices.Min(t.ratios), slices.Max(t.ratios)
	var of [2]*Growth
	for who := range of {
		var factors []float64
		for i := range t.ratios {
			factors = append(factors, t.took[who][1][i]/t.took[who][0][i])
		}
		of[who] = &Growth{Unit: "ms", From: median(t.took[who][0]), To: median(t.took[who][1]), Factor: median(factors)}
	}
	res.Growth, res.YardstickGrowth = of[0], of[1]
}
