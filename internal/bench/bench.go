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

// Options says what to measure, and where.
type Options struct {
	// Postgres is a connection string, MySQL what opens a database of MySQL or
	// MariaDB: one of them is set. Everything happens in a schema, or under a
	// prefix, of the benchmark's own, which it drops.
	Postgres string
	MySQL    func(ctx context.Context, cfg waymysql.Config) (*waymysql.DB, error)
	// Broker is an AMQP URL. Exchange and queue are the benchmark's own.
	Broker string
	// Rounds is how often each side is measured, after one round that is not
	// counted.
	Rounds int
	// Cases are those of Cases to measure. None means all.
	Cases []string
	// Rows is how many messages a round of relay relays, wait while dispatch is
	// measured beside a relay, or wait at the most for a claim.
	Rows int
	// Keys is how many keys messages have. Relay measures its cases with 0.
	Keys int
	// Workers is how many batches are in hand at once.
	Workers int
	// Batch and Window are those of the relay; 0 means its defaults. The yardstick
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
	// DatabaseDSN and BrokerDSN are what that process opens; they may hold a password.
	DatabaseDSN, BrokerDSN string
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
		for _, c := range failingCases {
			names = append(names, c.name)
		}
	case "dispatch":
		names = []string{"one", "two", "five", "beside-relay"}
	case "claim":
		names = []string{"growth", "snapshot", "memory"}
	}
	return names
}

// Wants reports whether a case is to be measured.
func (o Options) Wants(name string) bool {
	return len(o.Cases) == 0 || slices.Contains(o.Cases, name)
}

func (o Options) batch() int   { return cmp.Or(o.Batch, 500) }
func (o Options) buckets() int { return cmp.Or(o.Buckets, outbox.DefaultBuckets) }

func (o Options) say(format string, args ...any) {
	if o.Progress != nil {
		fmt.Fprintf(o.Progress, format+"\n", args...)
	}
}

// A Result is the outcome of one case. Rates are medians of the rounds, in
// messages or transactions a second; the ratio is the median of the rounds'
// ratios.
type Result struct {
	Case          string  `json:"case"`
	Database      string  `json:"database"`
	Keys          int     `json:"keys"`
	Workers       int     `json:"workers"` // or connections
	Ordering      string  `json:"ordering,omitempty"`
	Rate          float64 `json:"rate"`
	YardstickRate float64 `json:"yardstick_rate"`
	Ratio         float64 `json:"ratio"`
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

	// Of claim alone, which has no rates.
	Growth          *Growth `json:"growth,omitempty"`
	YardstickGrowth *Growth `json:"yardstick_growth,omitempty"`

	// Of latency and the failing keys, which have no rates.
	Latency          *quantiles `json:"latency,omitempty"`
	YardstickLatency *quantiles `json:"yardstick_latency,omitempty"`
}

// A side does its work once and returns how much that was and how long it took,
// without preparations.
type side func(ctx context.Context) (done int, took time.Duration, err error)

// race lets two sides take turns. Profiles tell them apart by the label side.
func race(ctx context.Context, opt Options, res Result, waybill, yardstick side) (Result, error) {
	var rates, yardsticks, ratios []float64
	for round := range opt.Rounds + 1 {
		var rate [2]float64
		for turn := range 2 {
			who := (round + turn) % 2
			var done int
			var took time.Duration
			var err error
			pprof.Do(ctx, pprof.Labels("side", []string{"waybill", "yardstick"}[who]), func(ctx context.Context) {
				done, took, err = []side{waybill, yardstick}[who](ctx)
			})
			if err != nil {
				return res, fmt.Errorf("%s, round %d: %w", res.Case, round, err)
			}
			rate[who] = float64(done) / took.Seconds()
		}
		if round == 0 {
			continue // warms up
		}
		opt.say("%s, %d workers, round %d: %.0f/s against %.0f/s, %.2f", res.Case, res.Workers, round, rate[0], rate[1], rate[0]/rate[1])
		rates, yardsticks, ratios = append(rates, rate[0]), append(yardsticks, rate[1]), append(ratios, rate[0]/rate[1])
	}
	res.Rate, res.YardstickRate, res.Ratio = median(rates), median(yardsticks), median(ratios)
	res.Min, res.Max, res.Rounds = slices.Min(ratios), slices.Max(ratios), opt.Rounds
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
