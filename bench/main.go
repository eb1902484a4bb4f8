// Bench measures waybill against code written by hand that does the same to the
// same file, in the same run, and prints the ratios. README.md describes
// each case.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/pprof"
	"slices"
	"syscall"
	"text/tabwriter"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A benchmark is one line of the table.
type benchmark struct {
	name     string
	database string
	unit     string // of the counted items, singular
	goal     goal
	// open prepares the two sides, in files of dir.
	open func(ctx context.Context, dir string) (*race, error)
}

// result is one benchmark's outcome. Rates are medians of the rounds, a second.
type result struct {
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

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	match := flags.String("run", "", "only the cases whose name matches this `regexp`")
	rounds := flags.Int("rounds", 7, "how often each case is measured, at least 5")
	asJSON := flags.Bool("json", false, "print JSON")
	profile := flags.String("cpuprofile", "", "write a CPU profile of both sides to this `file`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	pattern, err := regexp.Compile(*match)
	if err != nil {
		return err
	}
	if *rounds < 5 || flags.NArg() > 0 {
		return fmt.Errorf("-rounds %d, arguments %q: want at least 5 rounds and no arguments", *rounds, flags.Args())
	}
	all := slices.Concat(dispatches(), passThroughs(), drains(), handlings())
	all = slices.DeleteFunc(all, func(b benchmark) bool { return !pattern.MatchString(b.name) })
	if len(all) == 0 {
		return fmt.Errorf("no case matches %q", *match)
	}
	if *profile != "" {
		stopProfile, err := startProfile(*profile)
		if err != nil {
			return err
		}
		defer stopProfile()
	}
	var results []result
	for _, b := range all {
		fmt.Fprintf(stderr, "%s ...\n", b.name)
		r, err := b.measure(ctx, *rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		results = append(results, r)
	}
	if *asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetEscapeHTML(false)
		return enc.Encode(map[string][]result{"results": results})
	}
	return table(stdout, results)
}

func startProfile(path string) (stop func(), err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

func table(w io.Writer, results []result) error {
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
