package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cmd/waybill/internal/bench"
	"github.com/waybill-go/waybill/cmd/waybill/internal/bench/files"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waycli/mysql"
	"github.com/waybill-go/waybill/waycli/postgres"
	"github.com/waybill-go/waybill/waymysql"
)

// benchmarks are the arguments of bench.
var benchmarks = map[string]func(context.Context, bench.Options) ([]bench.Result, error){
	"relay": bench.Relay, "dispatch": bench.Dispatch, "inbox": bench.Inbox, "latency": bench.Latency, "claim": bench.Claim,
	"starve": bench.Starve, "queue": bench.Queue, "observe": bench.Observe,
}

// benchFlags are the flags of bench.
type benchFlags struct {
	bench.Options
	broker   string
	budget   bool
	profiles profiles
}

// benchCommand measures waybill against code written by hand.
func benchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench files|relay|dispatch|inbox|queue|latency|claim|starve|observe",
		Short: "Measure waybill against code written by hand, on your servers",
		Long:  benchHelp,
		Example: `  waybill bench files
  waybill bench relay --database postgres://localhost/test --broker amqp://guest:guest@localhost
  waybill bench relay --case strict --batch 1000 --window 512 --database postgres://localhost/test`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"files", "relay", "dispatch", "inbox", "queue", "latency", "claim", "starve", "observe"},
		RunE:      func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	p := cmd.Flags()
	p.StringVar(&f.broker, "broker", "", "DSN of a RabbitMQ")
	p.StringArrayVar(&f.Cases, "case", nil, "only this case, of those above; may be repeated")
	p.IntVar(&f.Rounds, "rounds", 5, "how often each side is measured; a median wants 3 or more")
	p.IntVar(&f.Rows, "rows", 100_000, "messages per round of relay, inbox, queue and observe (the last three: 20,000); waiting beside dispatch; for claim (default there 1,000,000); the load of starve (default: see the cases)")
	p.IntVar(&f.Keys, "keys", 1000, "partition keys (dispatch: 100,000, starve: 100); relay then measures this case alone")
	f.Slice = 30 * time.Second
	p.Var((*duration)(&f.Slice), "slice", "how long each side of latency, starve and failing keys is measured in a round (dispatch: 1s)")
	p.IntVar(&f.Buckets, "buckets", outbox.DefaultBuckets, "buckets of the outbox")
	p.IntVar(&f.Workers, "workers", 2, "batches a relay publishes at once (inbox, queue: handlers)")
	p.IntVar(&f.Batch, "batch", 0, "rows a relay claims at once (default 500)")
	p.IntVar(&f.Window, "window", 0, "messages of a batch a relay has unconfirmed at once (default 256)")
	p.BoolVar(&f.budget, "budget", false, "print the CPU time a message takes of client, database and broker, all on this Linux machine")
	p.StringVar(&f.profiles.cpu, "cpuprofile", "", "write a CPU profile to this file; go tool pprof -tagfocus side=waybill shows one side")
	p.StringVar(&f.profiles.allocs, "allocprofile", "", "write a profile of all allocations to this file")
	return cmd
}

func (f *benchFlags) run(cmd *cobra.Command, name string) error {
	asJSON, err := cmd.Flags().GetBool("json")
	if err != nil {
		return err
	}
	if err := f.check(cmd, name); err != nil {
		return err
	}
	if name == "files" {
		return f.files(cmd, asJSON)
	}
	database, err := cmd.Flags().GetString("database")
	if err != nil {
		return err
	}
	if err := f.servers(name, database); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	f.Drain = []string{self, "relay", "--drain", "--json"}
	f.Progress = cmd.ErrOrStderr()
	stop, err := f.profiles.start()
	if err != nil {
		return &waycli.Error{Kind: waycli.Usage, Err: err}
	}
	results, err := benchmarks[name](cmd.Context(), f.Options)
	if errors.Is(err, bench.ErrOpen) && !errors.Is(err, waybill.ErrUnavailable) {
		err = &waycli.Error{Kind: waycli.Usage, Err: err, Hint: "check the DSN, and the rights of its user"}
	} else if err != nil {
		err = fmt.Errorf("bench: %w", err)
	}
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	return printResults(cmd.OutOrStdout(), results, asJSON)
}

// files measures on SQLite files.
func (f *benchFlags) files(cmd *cobra.Command, asJSON bool) error {
	stop, err := f.profiles.start()
	if err != nil {
		return &waycli.Error{Kind: waycli.Usage, Err: err}
	}
	results, err := files.Run(cmd.Context(), f.Cases, f.Rounds, cmd.ErrOrStderr())
	if err = errors.Join(err, stop()); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return files.Print(cmd.OutOrStdout(), results, asJSON)
}

// check refuses combinations that cannot be measured, and completes the others.
func (f *benchFlags) check(cmd *cobra.Command, name string) error {
	wrong := func(hint, format string, args ...any) error {
		return &waycli.Error{Kind: waycli.Usage, Err: fmt.Errorf(format, args...), Hint: hint}
	}
	if f.budget && !slices.Contains([]string{"relay", "dispatch", "inbox", "queue"}, name) {
		return wrong("relay, dispatch, inbox and queue measure rates", "--budget: bench %s has no rate of messages", name)
	}
	least := 100 * time.Millisecond
	if name == "latency" || name == "relay" || name == "starve" {
		least = time.Second
	}
	if f.Rounds < 1 || f.Rows < 1 || f.Keys < 1 || f.Workers < 1 || f.Slice < least {
		return wrong("", "--rounds %d, --rows %d, --keys %d, --workers %d, --slice %v: want a slice of %v at least, and 1 of the others", f.Rounds, f.Rows, f.Keys, f.Workers, f.Slice, least)
	}
	for _, flag := range []struct {
		name  string
		value int
	}{{"batch", f.Batch}, {"window", f.Window}} {
		if cmd.Flags().Changed(flag.name) && flag.value < 1 {
			return wrong("leave it out for the default", "--%s %d: want at least 1", flag.name, flag.value)
		}
	}
	if !outbox.ValidBuckets(f.Buckets) {
		return wrong("", "--buckets %d: want a power of two up to %d", f.Buckets, outbox.MaxBuckets)
	}
	known := bench.Cases(name)
	if name == "files" {
		known = files.Groups
	}
	for _, c := range f.Cases {
		if !slices.Contains(known, c) {
			hint := "its cases are " + strings.Join(known, ", ")
			if len(known) == 0 {
				hint = "it has none to choose from"
			}
			return wrong(hint, "--case %s: bench %s has no such case", c, name)
		}
	}
	if cmd.Flags().Changed("keys") && name == "relay" && len(f.Cases) > 0 {
		return wrong("the cases have keys of their own", "--keys and --case do not go together")
	}
	f.complete(cmd, name)
	return nil
}

// complete fills the flags that were left out where a benchmark has a default of its own.
func (f *benchFlags) complete(cmd *cobra.Command, name string) {
	if !cmd.Flags().Changed("keys") {
		f.Keys = map[string]int{"relay": 0, "dispatch": 100_000, "starve": 100}[name]
		if f.Keys == 0 && name != "relay" {
			f.Keys = 1000
		}
	}
	if rows := map[string]int{"claim": 1_000_000, "inbox": 20_000, "queue": 20_000, "observe": 20_000}[name]; rows > 0 && !cmd.Flags().Changed("rows") {
		f.Rows = rows
	}
	if name == "starve" && !cmd.Flags().Changed("rows") {
		f.Rows = 0 // the sizes of the cases
	}
	if (name == "inbox" || name == "queue") && !cmd.Flags().Changed("workers") {
		f.Workers = 0 // several
	}
	if name == "dispatch" && !cmd.Flags().Changed("slice") {
		f.Slice = time.Second
	}
}

// servers parses the DSNs. The broker's is optional for cases without a broker.
func (f *benchFlags) servers(name, database string) error {
	on, err := benchDSN("--database", database, "postgres", "mysql")
	if err != nil {
		return err
	}
	f.DatabaseDSN = on.Reveal()
	if on.Scheme == "mysql" {
		f.MySQL = func(ctx context.Context, cfg waymysql.Config) (*waymysql.DB, error) { return mysql.Open(ctx, on, cfg) }
	} else if f.Postgres, err = postgres.ConnString(on); err != nil {
		return err
	}
	if f.NeedsBroker(name) {
		to, err := benchDSN("--broker", f.broker, "amqp")
		if err != nil {
			return err
		}
		f.Broker, f.BrokerDSN = to.Reveal(), to.Reveal()
	}
	if f.budget {
		if f.Meter, err = bench.NewMeter(f.DatabaseDSN, f.BrokerDSN); err != nil {
			return &waycli.Error{Kind: waycli.Usage, Err: fmt.Errorf("--budget: %w", err), Hint: "the servers must run on this machine, on Linux, and as this user; root may see all"}
		}
	}
	return nil
}

// benchDSN returns the DSN of a flag, which must be there.
func benchDSN(flag, text string, schemes ...string) (config.DSN, error) {
	if text == "" {
		return config.DSN{}, &waycli.Error{Kind: waycli.Usage, Err: fmt.Errorf("%s is missing", flag), Hint: "bench measures on servers: give a DSN that begins with " + strings.Join(schemes, ":// or ") + "://; --case chooses what is measured"}
	}
	return demoDSN(flag, text, schemes...)
}
