package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/bench"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waycli/mysql"
	"github.com/waybill-go/waybill/waycli/postgres"
	"github.com/waybill-go/waybill/waymysql"
)

// benchCommand measures waybill against code written by hand.
func benchCommand() *cobra.Command {
	var opt bench.Options
	var broker string
	cmd := &cobra.Command{
		Use:   "bench relay|dispatch|latency",
		Short: "Measure waybill against code written by hand, on your servers",
		Long: `Measure waybill against code written by hand that does the same job on the same servers, in the
same run. Rounds of both sides take turns; the ratio is the median of the rounds'. It uses a schema
(or tables with a prefix), an exchange and a queue of its own, and removes them.

  relay     a relay in strict order against one that keeps no order: rows are loaded before each
            round, and count and order are checked at the queue after it
  dispatch  a transaction with a business row and one, two or five messages, against the same with a
            plain insert; more --buckets are more dispatch locks, and fewer transactions that wait
  latency   from a commit to a consumer, 50 messages a second, against a client that publishes after
            its commit; the ratio is that of the 99th percentiles, and less is better

With --json: {"results": [{"case", "database", "keys", "workers", "ordering", "rate",
"yardstick_rate", "ratio", "min", "max", "rounds", "target", "buckets"}]}; latency has "latency" and
"yardstick_latency" in place of rates, each with "p50_ms" and "p99_ms".`,
		Example:   "  waybill bench relay --database postgres://localhost/test --broker amqp://guest:guest@localhost",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"relay", "dispatch", "latency"},
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, err := cmd.Flags().GetBool("json")
			if err != nil {
				return err
			}
			database, err := cmd.Flags().GetString("database")
			if err != nil {
				return err
			}
			on, err := benchDSN("--database", database, "postgres", "mysql")
			if err != nil {
				return err
			}
			if on.Scheme == "mysql" {
				opt.MySQL = func(ctx context.Context, cfg waymysql.Config) (*waymysql.DB, error) { return mysql.Open(ctx, on, cfg) }
			} else if opt.Postgres, err = postgres.ConnString(on); err != nil {
				return err
			}
			if args[0] != "dispatch" {
				to, err := benchDSN("--broker", broker, "amqp")
				if err != nil {
					return err
				}
				opt.Broker = to.Reveal()
			}
			if opt.Rounds < 3 || opt.Rows < 1 || opt.Keys < 1 || opt.Workers < 1 || opt.Slice < time.Second {
				return &waycli.Error{Kind: waycli.Usage, Err: fmt.Errorf("--rounds %d, --rows %d, --keys %d, --workers %d, --slice %v: want at least 3 rounds, 1s, and 1 of the others", opt.Rounds, opt.Rows, opt.Keys, opt.Workers, opt.Slice)}
			}
			if !outbox.ValidBuckets(opt.Buckets) {
				return &waycli.Error{Kind: waycli.Usage, Err: fmt.Errorf("--buckets %d: want a power of two up to %d", opt.Buckets, outbox.MaxBuckets)}
			}
			opt.Progress = cmd.ErrOrStderr()
			if !cmd.Flags().Changed("keys") && args[0] == "dispatch" {
				opt.Keys = 100_000
			}
			run := map[string]func(context.Context, bench.Options) ([]bench.Result, error){"relay": bench.Relay, "dispatch": bench.Dispatch, "latency": bench.Latency}
			results, err := run[args[0]](cmd.Context(), opt)
			if errors.Is(err, bench.ErrOpen) && !errors.Is(err, waybill.ErrUnavailable) {
				return &waycli.Error{Kind: waycli.Usage, Err: err, Hint: "check the DSN, and the rights of its user"}
			}
			if err != nil {
				return fmt.Errorf("bench: %w", err)
			}
			return printResults(cmd.OutOrStdout(), results, asJSON)
		},
	}
	p := cmd.Flags()
	p.StringVar(&broker, "broker", "", "DSN of a RabbitMQ")
	p.IntVar(&opt.Rounds, "rounds", 5, "how often each side is measured")
	p.IntVar(&opt.Rows, "rows", 20_000, "messages per round of relay")
	p.IntVar(&opt.Keys, "keys", 1000, "partition keys (dispatch: 100,000)")
	p.DurationVar(&opt.Slice, "slice", 30*time.Second, "how long each side of latency is measured in a round")
	p.IntVar(&opt.Buckets, "buckets", outbox.DefaultBuckets, "buckets of the outbox")
	p.IntVar(&opt.Workers, "workers", 2, "batches a relay has in hand at once")
	return cmd
}

// benchDSN returns the DSN of a flag, which must be there.
func benchDSN(flag, text string, schemes ...string) (config.DSN, error) {
	if text == "" {
		return config.DSN{}, &waycli.Error{Kind: waycli.Usage, Err: fmt.Errorf("%s is missing", flag), Hint: "bench measures on servers: give the DSN of a " + strings.Join(schemes, " or ")}
	}
	return demoDSN(flag, text, schemes...)
}

func printResults(w io.Writer, results []bench.Result, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(struct {
			Results []bench.Result `json:"results"`
		}{results})
	}
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(results) > 0 && results[0].Latency != nil {
		fmt.Fprintln(tab, "ratio\tp50\tp99\tyardstick p50\tp99\tkeys\t  case\t")
		for _, r := range results {
			fmt.Fprintf(tab, "%.2f\t%.2f ms\t%.2f ms\t%.2f ms\t%.2f ms\t%d\t  %s\t\n", r.Ratio, r.Latency.P50, r.Latency.P99, r.YardstickLatency.P50, r.YardstickLatency.P99, r.Keys, r.Case)
		}
		return tab.Flush()
	}
	fmt.Fprintln(tab, "ratio\tmin\tmax\ttarget\twaybill\tyardstick\tkeys\tat once\t  case\t")
	for _, r := range results {
		fmt.Fprintf(tab, "%.2f\t%.2f\t%.2f\t%.2f\t%.0f/s\t%.0f/s\t%d\t%d\t  %s\t\n", r.Ratio, r.Min, r.Max, r.Target, r.Rate, r.YardstickRate, r.Keys, r.Workers, r.Case)
	}
	return tab.Flush()
}
