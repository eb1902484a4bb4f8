package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/waybill-go/waybill/cmd/waybill/internal/bench"
)

func printResults(w io.Writer, results []bench.Result, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(struct {
			Results []bench.Result `json:"results"`
		}{results})
	}
	var rates, latencies, growths []bench.Result
	for _, r := range results {
		switch {
		case r.Latency != nil:
			latencies = append(latencies, r)
		case r.Growth != nil:
			growths = append(growths, r)
		default:
			rates = append(rates, r)
		}
	}
	for _, table := range []struct {
		rows  []bench.Result
		print func(w io.Writer, results []bench.Result)
	}{{rates, printRates}, {latencies, printLatencies}, {growths, printGrowths}} {
		if len(table.rows) == 0 {
			continue
		}
		tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		table.print(tab, table.rows)
		if err := tab.Flush(); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(rates, func(r bench.Result) bool { return r.Budget != nil }) {
		tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		printBudgets(tab, rates)
		if err := tab.Flush(); err != nil {
			return err
		}
	}
	for _, r := range results {
		if r.Relayed > 0 {
			fmt.Fprintf(w, "%s: %.0f/s were relayed meanwhile, %.0f/s by the yardstick, %.0f/s by bare\n", r.Case, r.Relayed, r.YardstickRelayed, r.BareRelayed)
		}
		if r.Latency != nil && r.Latency.Drained > 0 {
			fmt.Fprintf(w, "%s: the load of %d was published in %.1f s\n", r.Case, r.Rows, r.Latency.Drained)
		}
	}
	return nil
}

func printRates(w io.Writer, results []bench.Result) {
	fmt.Fprintln(w, "ratio\tmin\tmax\ttarget\tto bare\twaybill\tyardstick\tbare\tkeys\tat once\t  case\t")
	for _, r := range results {
		bare, ratio := "-", "-"
		if r.BareRate > 0 {
			bare, ratio = fmt.Sprintf("%.0f/s", r.BareRate), fmt.Sprintf("%.2f", r.BareRatio)
		}
		fmt.Fprintf(w, "%.2f\t%.2f\t%.2f\t%s\t%s\t%.0f/s\t%.0f/s\t%s\t%d\t%d\t  %s\t\n",
			r.Ratio, r.Min, r.Max, target(r), ratio, r.Rate, r.YardstickRate, bare, r.Keys, r.Workers, r.Case)
	}
}

// printBudgets prints microseconds of CPU a message.
func printBudgets(w io.Writer, results []bench.Result) {
	fmt.Fprintln(w, "client\tdatabase\tbroker\tyardstick's client\tdatabase\tbroker\tbare's client\tdatabase\tbroker\t  CPU a message of\t")
	cells := func(b *bench.Budget) string {
		if b == nil {
			return "-\t-\t-"
		}
		return fmt.Sprintf("%.0f us\t%.0f us\t%.0f us", b.Client, b.Database, b.Broker)
	}
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%s\t%s\t  %s, %d at once\t\n", cells(r.Budget), cells(r.YardstickBudget), cells(r.BareBudget), r.Case, r.Workers)
	}
}

func printLatencies(w io.Writer, results []bench.Result) {
	fmt.Fprintln(w, "ratio\twanted\tto bare\tp50\tp99\tslowest\tyardstick p50\tp99\tslowest\tbare p50\tp99\tkeys\t  case\t")
	for _, r := range results {
		most, ratio, bare := "-", "-", "-\t-"
		if r.MaxRatio > 0 {
			most = fmt.Sprintf("<= %.2f", r.MaxRatio)
		} else if r.MaxSlowest > 0 {
			most = fmt.Sprintf("slowest < %g ms", r.MaxSlowest)
		}
		if b := r.BareLatency; b != nil {
			ratio, bare = fmt.Sprintf("%.2f", r.BareRatio), fmt.Sprintf("%.2f ms\t%.2f ms", b.P50, b.P99)
		}
		l, y := r.Latency, r.YardstickLatency
		fmt.Fprintf(w, "%.2f\t%s\t%s\t%.2f ms\t%.2f ms\t%.2f ms\t%.2f ms\t%.2f ms\t%.2f ms\t%s\t%d\t  %s\t\n",
			r.Ratio, most, ratio, l.P50, l.P99, l.Slowest, y.P50, y.P99, y.Slowest, bare, r.Keys, r.Case)
	}
}

func printGrowths(w io.Writer, results []bench.Result) {
	fmt.Fprintln(w, "ratio\tmin\tmax\twanted\tgrowth\tfrom\tto\tyardstick\tfrom\tto\t  case\t")
	for _, r := range results {
		fmt.Fprintf(w, "%.2f\t%.2f\t%.2f\t%s\t%s\t%s\t  %s\t\n", r.Ratio, r.Min, r.Max, wanted(r.Growth), growthCells(r.Growth), growthCells(r.YardstickGrowth), r.Case)
	}
}

func target(r bench.Result) string {
	switch {
	case r.MaxRatio > 0:
		return fmt.Sprintf("<= %.2f", r.MaxRatio)
	case r.Target == 0:
		return "-"
	}
	return fmt.Sprintf("%.2f", r.Target)
}

func wanted(g *bench.Growth) string {
	if g.MaxTo > 0 {
		return fmt.Sprintf("< %g %s", g.MaxTo, g.Unit)
	}
	return fmt.Sprintf("<= %.2f", g.MaxFactor)
}

// growthCells are three cells of the table.
func growthCells(g *bench.Growth) string {
	if g == nil {
		return "-\t-\t-"
	}
	return fmt.Sprintf("%.2f\t%.2f %s\t%.2f %s", g.Factor, g.From, g.Unit, g.To, g.Unit)
}
