package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"encoding/json"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cmd/waybill/internal/demo"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waycli/mysql"
	"github.com/waybill-go/waybill/waycli/postgres"
)

// demoCommand runs the main job under faults and checks the result.
func demoCommand() *cobra.Command {
	var opt demo.Options
	var broker, listen string
	var pages bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch messages survive kill -9, lost acks and rollbacks",
		Long: `An order service writes orders and dispatches what happens to them; some transactions are rolled
back on purpose. Relay processes move the messages to a broker and are killed with kill -9 while
they work. A billing service consumes, loses some of its acknowledgements and fails now and then.
At the end the effects are compared with what was committed: exit 0 if they are the same, 7 if not.

Without options it runs on three SQLite files in a temporary directory. --database takes a file
(sqlite:///path), a PostgreSQL, MySQL or MariaDB, --broker a file or a RabbitMQ. Files must not have
been used by the demo before; in servers it makes a schema (or tables with a prefix), an exchange
and a queue of its own, and removes them.

With --dashboard it prints the address of a dashboard, and runs on a temporary SQLite file until it
is interrupted: orders, relays killed with kill -9, payments that a gateway refuses for 20 seconds
and that are retried after it, and mails that fail until the reader retries them. There is no
verdict, and the other flags do not go with it.`,
		Example: "  waybill demo\n  waybill demo --orders 500 --seed 7 --json\n  waybill demo --dashboard\n  waybill demo --database postgres://localhost/test --broker amqp://guest:guest@localhost",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pages {
				return runStory(cmd, listen)
			}
			if cmd.Flags().Changed("listen") {
				return &waycli.Error{Kind: waycli.Usage, Err: errors.New("--listen without --dashboard"), Hint: "it is the address of the dashboard"}
			}
			return runDemo(cmd, opt, broker)
		},
	}
	cmd.Flags().IntVar(&opt.Orders, "orders", 2000, "how many orders, three messages each")
	cmd.Flags().Uint64Var(&opt.Seed, "seed", 0, "of all random choices; 0 picks one")
	opt.Limit = 55 * time.Second
	cmd.Flags().Var((*duration)(&opt.Limit), "time-limit", "for the whole run; what has not arrived by then is lost")
	cmd.Flags().StringVar(&broker, "broker", "", "DSN of the broker: a SQLite file for its queue, or RabbitMQ")
	cmd.Flags().BoolVar(&pages, "dashboard", false, "show a service in the dashboard until it is interrupted")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8080", "address of the dashboard, on this machine; port 0 takes a free one")
	return cmd
}

// runStory shows a service in the dashboard until it is interrupted.
func runStory(cmd *cobra.Command, listen string) error {
	var others []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "dashboard" && f.Name != "listen" {
			others = append(others, "--"+f.Name)
		}
	})
	if len(others) > 0 {
		return &waycli.Error{Kind: waycli.Usage, Err: fmt.Errorf("%s with --dashboard", strings.Join(others, ", ")), Hint: "only --listen goes with it"}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return demo.Story(cmd.Context(), demo.StoryOptions{
		Relay:     []string{self, "relay", "--standby", "--config"},
		Dashboard: []string{self, "dashboard", "--listen", listen, "--config"},
		Stdout:    cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
	})
}

// runDemo runs the demo, and fails unless its verdict is good.
func runDemo(cmd *cobra.Command, opt demo.Options, broker string) error {
	asJSON, err := cmd.Flags().GetBool("json")
	if err != nil {
		return err
	}
	database, err := cmd.Flags().GetString("database")
	if err != nil {
		return err
	}
	if opt.Database, err = demoDSN("--database", database, "sqlite", "postgres", "mysql"); err != nil {
		return err
	}
	if opt.Broker, err = demoDSN("--broker", broker, "sqlite", "amqp"); err != nil {
		return err
	}
	opt.ConnString, opt.OpenMySQL = postgres.ConnString, mysql.Open
	if opt.Orders < 1 || opt.Limit <= 0 {
		return &waycli.Error{Kind: waycli.Usage, Err: fmt.Errorf("--orders %d, --time-limit %v: want more than nothing", opt.Orders, opt.Limit), Hint: "such as --orders 500 --time-limit 1m"}
	}
	if !opt.Database.IsZero() && opt.Database.Equal(opt.Broker) {
		return &waycli.Error{Kind: waycli.Usage, Err: errors.New("--database and --broker are the same file"), Hint: "the broker is another system: give it a file of its own"}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	opt.Relay = []string{self, "relay", "--standby", "--config"}
	opt.Progress = cmd.ErrOrStderr()
	opt.Live = isTerminal(opt.Progress)
	verdict, err := demo.Run(cmd.Context(), opt)
	if cmd.Context().Err() != nil {
		return &waycli.Error{Kind: waycli.Interrupted, Err: errors.New("demo: interrupted: there is no verdict")}
	}
	if errors.Is(err, demo.ErrUsed) {
		return &waycli.Error{Kind: waycli.Usage, Err: err, Hint: "leave --database and --broker out, or name new files"}
	}
	if errors.Is(err, demo.ErrOpen) && !errors.Is(err, waybill.ErrUnavailable) {
		return &waycli.Error{Kind: waycli.Usage, Err: err, Hint: "check the DSN, and the rights of its user"}
	}
	if err != nil {
		return err
	}
	if err := printVerdict(cmd.OutOrStdout(), verdict, asJSON); err != nil {
		return err
	}
	if !verdict.Drained {
		return &waycli.Error{Kind: waycli.CheckFailed, Err: fmt.Errorf("demo: %d messages were still on their way when the time was up", verdict.Unfinished), Hint: "raise --time-limit"}
	}
	if !verdict.OK {
		return &waycli.Error{Kind: waycli.CheckFailed, Err: errors.New("demo: the verdict is not ok"), Hint: fmt.Sprintf("repeat it with --seed %d", verdict.Seed)}
	}
	return nil
}

// demoDSN parses the DSN of a flag, and returns the zero one for no text.
func demoDSN(flag, text string, schemes ...string) (config.DSN, error) {
	if text == "" {
		return config.DSN{}, nil
	}
	dsn, err := config.ParseDSN(text)
	if err != nil {
		return dsn, fmt.Errorf("%s: %w", flag, err)
	}
	if !slices.Contains(schemes, dsn.Scheme) {
		return dsn, &waycli.Error{Kind: waycli.Usage, Err: fmt.Errorf("%s %s: not a server or file for this", flag, dsn), Hint: "it takes: " + strings.Join(schemes, ", ")}
	}
	for _, option := range []string{"schema", "prefix", "exchange", "queue"} {
		if config.Takes(dsn.Scheme, option) && dsn.Text(option, "") != "" {
			return dsn, &waycli.Error{Kind: waycli.Usage, Err: fmt.Errorf("%s %s: the %s is made for the occasion", flag, dsn, option), Hint: "leave the option " + option + " out"}
		}
	}
	return dsn, nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

func printVerdict(w io.Writer, v demo.Verdict, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(v)
	}
	word := "OK: every committed message had its effect, once, in order; nothing else had"
	if !v.OK {
		word = "FAILED"
	}
	_, err := fmt.Fprintf(w, `
committed            %6d   messages, and %d transactions rolled back
handled              %6d   of them
lost                 %6d   and %d unfinished
phantom              %6d   effects of what was rolled back
duplicate effects    %6d
order violations     %6d   over %d orders
                              under
killed relays        %6d   with kill -9
lost acks            %6d
duplicate deliveries %6d   suppressed by the inbox
handler failures     %6d   retried

%s (seed %d, %.1f s)
`, v.Committed, v.RolledBack, v.Handled, v.Lost, v.Unfinished, v.Phantoms, v.DuplicateEffects, v.OrderViolations, v.Orders,
		v.Kills, v.LostAcks, v.DuplicatesSuppressed, v.HandlerFailures, word, v.Seed, v.Seconds)
	return err
}
