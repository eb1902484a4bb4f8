package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// Options selects the cases, the servers and the amounts of a run.
type Options struct {
	// Postgres is a connection string, MySQL opens a database of MySQL or
	// MariaDB: one of them is set. Everything happens in a schema, or under a
	// prefix, of the benchmark's own, which it drops.
	Postgres string
	MySQL    func(ctx context.Context, cfg waymysql.Config) (*waymysql.DB, error)
	// Broker is an AMQP URL. Exchange and queue are the benchmark's own.
	Broker string
	// Rounds is how often each side is measured, after one round that is not
	// counted.
	Rounds int
	// Cases are the names to measure, from the function Cases. None means all.
	Cases []string
	// Rows is the number of messages: of a relay round, of the backlog in dispatch
	// beside a relay, of the largest backlog in claim, and of the load in starve,
	// where 0 means each case's default.
	Rows int
	// Keys is how many keys messages have. Relay measures its cases with 0.
	Keys int
	// Workers is how many batches are published at once.
	Workers int
	// Batch and Window are settings of the relay; 0 means its defaults. The yardstick
	// keeps its own.
	Batch, Window int
	// Buckets is how many the outbox has; 0 means outbox.DefaultBuckets.
	Buckets int
	// Slice is how long a side of latency, of dispatch or of the failing keys is
	// measured in a round.
	Slice time.Duration
	// Drain is the command of a process that drains the outbox of a configuration
	// file, whose name is added.
	Drain []string
	// DatabaseDSN and BrokerDSN are the DSNs for that process; they may hold a password.
	DatabaseDSN, BrokerDSN string
	// Meter reads what the rounds of rates use of the CPU. Nil reads nothing.
	Meter *Meter
	// Progress receives a line for each round. Nil discards.
	Progress io.Writer
}

// Cases are the names of a command's cases, in the order in which they are
// measured.
func Cases(command string) (names []string) {
	switch command {
	case "relay":
		for _, c := range relayCases {
			names = append(names, c.name)
		}
		names = append(names, watchedCase)
		for _, c := range failingCases {
			names = append(names, c.name)
		}
	case "dispatch":
		names = []string{"one", "two", "five", "beside-relay"}
	case "claim":
		names = []string{"growth", "snapshot", "memory"}
	case "starve":
		for _, c := range starveCases {
			names = append(names, c.name)
		}
	case "queue":
		for _, c := range queueCases {
			names = append(names, c.name)
		}
		names = append(names, "retry")
	case "observe":
		for _, o := range observers {
			names = append(names, o.name)
		}
	}
	return names
}

// Wants reports whether a case is to be measured.
func (o Options) Wants(name string) bool {
	return len(o.Cases) == 0 || slices.Contains(o.Cases, name)
}

// NeedsBroker reports whether a case of a command publishes to a broker.
func (o Options) NeedsBroker(command string) bool {
	switch command {
	case "dispatch":
		return o.Wants("beside-relay")
	case "claim":
		return o.Wants("memory")
	case "queue":
		return false
	case "starve":
		return slices.ContainsFunc([]string{"released-keys", "large-delayed", "hot-key", "retrying-messages", "retrying-keys"}, o.Wants)
	}
	return true
}

func (o Options) batch() int   { return cmp.Or(o.Batch, 500) }
func (o Options) buckets() int { return cmp.Or(o.Buckets, outbox.DefaultBuckets) }

func (o Options) say(format string, args ...any) {
	if o.Progress != nil {
		fmt.Fprintf(o.Progress, format+"\n", args...)
	}
}

// A Result is the outcome of one case. Rates are medians of the rounds, in
// messages or transactions a second; ratios are medians of the rounds' ratios.
type Result struct {
	Case          string  `json:"case"`
	Database      string  `json:"database"`
	Keys          int     `json:"keys"`
	Workers       int     `json:"workers"` // or connections
	Ordering      string  `json:"ordering,omitempty"`
	Rate          float64 `json:"rate"`
	YardstickRate float64 `json:"yardstick_rate"` // of ideal
	Ratio         float64 `json:"ratio"`          // to ideal
	BareRate      float64 `json:"bare_rate,omitempty"`
	BareRatio     float64 `json:"bare_ratio,omitempty"`
	Min           float64 `json:"min"` // the lowest ratio of a round
	Max           float64 `json:"max"`
	Rounds        int     `json:"rounds"`
	Target        float64 `json:"target,omitempty"`    // the ratio that is wanted at least
	MaxRatio      float64 `json:"max_ratio,omitempty"` // the ratio that is wanted at the most
	Buckets       int     `json:"buckets,omitempty"`

	Batch  int `json:"batch,omitempty"`  // the relay's, where it is not its default
	Window int `json:"window,omitempty"` // the same
	Rows   int `json:"rows,omitempty"`

	// Of dispatch beside a relay: messages relayed a second meanwhile.
	Relayed          float64 `json:"relayed_rate,omitempty"`
	YardstickRelayed float64 `json:"yardstick_relayed_rate,omitempty"`
	BareRelayed      float64 `json:"bare_relayed_rate,omitempty"`

	// Of rates, with a meter.
	Budget          *Budget `json:"budget,omitempty"`
	YardstickBudget *Budget `json:"yardstick_budget,omitempty"`
	BareBudget      *Budget `json:"bare_budget,omitempty"`

	// Of claim alone, which has no rates.
	Growth          *Growth `json:"growth,omitempty"`
	YardstickGrowth *Growth `json:"yardstick_growth,omitempty"`

	// Of latency, starve and the failing keys, which have no rates.
	Latency          *quantiles `json:"latency,omitempty"`
	YardstickLatency *quantiles `json:"yardstick_latency,omitempty"`
	BareLatency      *quantiles `json:"bare_latency,omitempty"`
	MaxSlowest       float64    `json:"max_slowest_ms,omitempty"` // target: Slowest at the most
}

// A side does its work once and returns how much that was and how long it took,
// without preparations.
type side func(ctx context.Context) (done int, took time.Duration, err error)

// sideNames are the names of the sides in profiles and progress. Some cases have
// only the first two.
var sideNames = []string{"waybill", "yardstick", "bare"}

// race measures the sides in rotating order. The label side tells them apart in
// profiles.
func race(ctx context.Context, opt Options, res Result, sides ...side) (Result, error) {
	rates, ratios := make([][]float64, len(sides)), make([][]float64, len(sides))
	budgets := make([][]Budget, len(sides))
	for round := range opt.Rounds + 1 {
		rate := make([]float64, len(sides))
		for turn := range sides {
			who := (round + turn) % len(sides)
			var done int
			var took time.Duration
			var err error
			pprof.Do(ctx, pprof.Labels("side", sideNames[who]), func(ctx context.Context) {
				done, took, err = sides[who](ctx)
			})
			if err != nil {
				return res, fmt.Errorf("%s, round %d, %s: %w", res.Case, round, sideNames[who], err)
			}
			rate[who] = float64(done) / took.Seconds()
			if b := opt.Meter.perMessage(done); round > 0 {
				budgets[who] = append(budgets[who], b)
			}
		}
		if round == 0 {
			continue // warms up
		}
		line := fmt.Sprintf("%s, %d workers, round %d: %.0f/s", res.Case, res.Workers, round, rate[0])
		for who := range sides {
			rates[who], ratios[who] = append(rates[who], rate[who]), append(ratios[who], rate[0]/rate[who])
			if who > 0 {
				line += fmt.Sprintf(", %s %.0f/s %.2f", sideNames[who], rate[who], rate[0]/rate[who])
			}
		}
		opt.say("%s", line)
	}
	res.Rate, res.YardstickRate, res.Ratio = median(rates[0]), median(rates[1]), median(ratios[1])
	res.Min, res.Max, res.Rounds = slices.Min(ratios[1]), slices.Max(ratios[1]), opt.Rounds
	res.Budget, res.YardstickBudget = medianBudget(budgets[0]), medianBudget(budgets[1])
	if len(sides) > 2 {
		res.BareRate, res.BareRatio, res.BareBudget = median(rates[2]), median(ratios[2]), medianBudget(budgets[2])
	}
	return res, nil
}

func median(values []float64) float64 {
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare)
	mid := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[mid-1] + sorted[mid]) / 2
	}
	return sorted[mid]
}
