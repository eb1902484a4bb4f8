package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"text/tabwriter"
)

// A result is one pair. Rates are in messages a second, medians of the rounds;
// the yardstick is the peer.
type result struct {
	Case          string  `json:"case"`
	Database      string  `json:"database"`
	Rows          int     `json:"rows"`
	Keys          int     `json:"keys"`
	Workers       int     `json:"workers"`  // of waybill
	Ordering      string  `json:"ordering"` // of waybill
	Rate          float64 `json:"rate"`
	RateMin       float64 `json:"rate_min"`
	RateMax       float64 `json:"rate_max"`
	YardstickRate float64 `json:"yardstick_rate"`
	YardstickMin  float64 `json:"yardstick_rate_min"`
	YardstickMax  float64 `json:"yardstick_rate_max"`
	Ratio         float64 `json:"ratio"` // waybill through the peer, median of the rounds' ratios
	Min           float64 `json:"min"`   // the lowest ratio of a round
	Max           float64 `json:"max"`
	Rounds        int     `json:"rounds"`
	// The most in a round: messages of the peer that arrived behind a later one
	// of their key, or more than once.
	YardstickDisordered int `json:"yardstick_disordered"`
	YardstickDuplicates int `json:"yardstick_duplicates"`
}

// A tally gathers the rounds of one pair.
type tally struct {
	ours, theirs, ratios   []float64
	disordered, duplicates int
}

func (t *tally) add(ours, theirs turn) {
	t.ours, t.theirs, t.ratios = append(t.ours, ours.rate), append(t.theirs, theirs.rate), append(t.ratios, ours.rate/theirs.rate)
	t.disordered, t.duplicates = max(t.disordered, theirs.disordered), max(t.duplicates, theirs.duplicates)
}

func (t *tally) result(opt options, peer string) result {
	return result{
		Case: peer, Database: "postgres", Rows: opt.rows, Keys: opt.keys, Workers: opt.workers(), Ordering: "strict",
		Rate: median(t.ours), RateMin: slices.Min(t.ours), RateMax: slices.Max(t.ours),
		YardstickRate: median(t.theirs), YardstickMin: slices.Min(t.theirs), YardstickMax: slices.Max(t.theirs),
		Ratio: median(t.ratios), Min: slices.Min(t.ratios), Max: slices.Max(t.ratios), Rounds: len(t.ratios),
		YardstickDisordered: t.disordered, YardstickDuplicates: t.duplicates,
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[mid-1] + sorted[mid]) / 2
	}
	return sorted[mid]
}

func printJSON(w io.Writer, results []result, versions map[string]string, missing []string) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Results  []result          `json:"results"`
		Versions map[string]string `json:"versions"`
		Missing  []string          `json:"missing,omitempty"`
	}{results, versions, missing})
}

func printTable(w io.Writer, results []result, versions map[string]string, missing []string) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "waybill / peer\tmin\tmax\twaybill msg/s\tmin\tmax\tpeer msg/s\tmin\tmax\tdisordered\tduplicates\t  peer")
	for _, r := range results {
		fmt.Fprintf(tab, "%.2f\t%.2f\t%.2f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%d\t%d\t  %s\n", r.Ratio, r.Min, r.Max,
			r.Rate, r.RateMin, r.RateMax, r.YardstickRate, r.YardstickMin, r.YardstickMax, r.YardstickDisordered, r.YardstickDuplicates, r.Case)
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, m := range missing {
		fmt.Fprintln(w, m)
	}
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		fmt.Fprintf(w, "%s %s\n", name, versions[name])
	}
	return nil
}

// versions names everything that took part.
func versions(ctx context.Context, db *database, f *contestants) (map[string]string, error) {
	v := map[string]string{"Go": runtime.Version() + fmt.Sprintf(", %d CPUs", runtime.NumCPU())}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, fmt.Errorf("this program was built without module information: build it with go build")
	}
	for _, m := range info.Deps {
		switch m.Path {
		case "github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-sql/v4", "github.com/ThreeDotsLabs/watermill-amqp/v3",
			"github.com/riverqueue/river", "github.com/riverqueue/river/riverdriver/riverpgxv5", "github.com/jackc/pgx/v5", "github.com/rabbitmq/amqp091-go":
			v[m.Path] = m.Version
		}
	}
	var postgres string
	if err := db.pool.QueryRow(ctx, "SHOW server_version").Scan(&postgres); err != nil {
		return nil, err
	}
	v["PostgreSQL"] = postgres
	if f.broker != nil {
		v["RabbitMQ"] = fmt.Sprint(f.broker.conn.Properties["version"])
	}
	for _, c := range f.them {
		if s, ok := c.(*symfony); ok {
			v["Symfony Messenger"] = s.version
		}
	}
	return v, nil
}
