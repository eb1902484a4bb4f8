// Package files measures waybill on SQLite files against code written by hand that does
// the same to the same file, in the same run. docs/bench.md describes each case.
package files

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Groups are the names by which cases are chosen: a case begins with its group's.
var Groups = []string{"dispatch", "middleware", "relay", "worker"}

// A benchmark is one line of the table.
type benchmark struct {
	name     string
	database string
	unit     string // of the counted items, singular
	goal     goal
	// open prepares the two sides, in files of dir.
	open func(ctx context.Context, dir string) (*race, error)
}

// A Result is one benchmark's outcome. Rates are medians of the rounds, a second.
type Result struct {
	Case          string   `json:"case"`
	Database      string   `json:"database"`
	Rate          float64  `json:"rate"`
	YardstickRate float64  `json:"yardstick_rate"`
	Ratio         float64  `json:"ratio"` // the median round's
	Min           float64  `json:"min"`   // the lowest ratio of a round
	Max           float64  `json:"max"`
	Rounds        int      `json:"rounds"`
	Unit          string   `json:"unit"`
	Target        string   `json:"target,omitempty"`
	Allocs        *float64 `json:"allocs,omitempty"` // of one call, where that is measured
}

// Run measures the cases of some groups, or with none all, and prints a line for each
// case to progress.
func Run(ctx context.Context, groups []string, rounds int, progress io.Writer) ([]Result, error) {
	var results []Result
	for _, b := range slices.Concat(dispatches(), passThroughs(), drains(), handlings()) {
		if len(groups) > 0 && !slices.ContainsFunc(groups, func(g string) bool { return strings.HasPrefix(b.name, g) }) {
			continue
		}
		fmt.Fprintf(progress, "%s ...\n", b.name)
		r, err := b.measure(ctx, rounds)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.name, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// Print writes results as a table, or as JSON.
func Print(w io.Writer, results []Result, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		return enc.Encode(map[string][]Result{"results": results})
	}
	return table(w, results)
}

func table(w io.Writer, results []Result) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "ratio\tmin\tmax\ttarget\twaybill\tyardstick\tallocs\t  case")
	for _, r := range results {
		allocs := ""
		if r.Allocs != nil {
			allocs = fmt.Sprint(*r.Allocs)
		}
		fmt.Fprintf(tab, "%.2f\t%.2f\t%.2f\t%s\t%s\t%s\t%s\t  %s\n", r.Ratio, r.Min, r.Max, cmp.Or(r.Target, "-"), speed(r.Rate, r.Unit), speed(r.YardstickRate, r.Unit), allocs, r.Case)
	}
	return tab.Flush()
}

// speed shows calls by their time and anything else by its rate.
func speed(rate float64, unit string) string {
	if unit == "call" {
		return fmt.Sprintf("%.1f ns", 1e9/rate)
	}
	return fmt.Sprintf("%.0f %s/s", rate, unit)
}
