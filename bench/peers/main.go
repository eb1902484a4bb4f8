// Peers has waybill's relay and its peers do the same job on the same servers,
// in the same run, and prints the ratios. README.md describes the comparison.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop() // a second signal ends the program at once
		fmt.Fprintln(os.Stderr, "peers: stopping and cleaning up, which may take half a minute")
	})
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// options holds the values of the flags.
type options struct {
	database, broker string
	rows, keys       int
	rounds           int
	match            *regexp.Regexp
	json             bool
	chart            string
	queue            bool
}

// workers is how many batches waybill publishes at once, or handlers it runs.
func (o options) workers() int {
	if o.queue {
		return queueWorkers
	}
	return waybillWorkers
}

func parse(args []string, stderr io.Writer) (options, error) {
	var opt options
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&opt.database, "database", "", "the PostgreSQL `URL`; everything happens in a schema that is dropped at the end")
	flags.StringVar(&opt.broker, "broker", "", "the RabbitMQ `URL`; exchange and queue are deleted at the end")
	flags.IntVar(&opt.rows, "rows", 20_000, "how many messages each turn moves; the full form has 100000")
	flags.IntVar(&opt.keys, "keys", 1000, "how many keys they have")
	flags.IntVar(&opt.rounds, "rounds", 3, "how often each pair is measured, at least 3")
	match := flags.String("run", "", "only the peers whose name matches this `regexp`")
	flags.BoolVar(&opt.json, "json", false, "print JSON")
	flags.StringVar(&opt.chart, "chart", "", "write a chart to this `FILE`, as SVG")
	flags.BoolVar(&opt.queue, "queue", false, "compare queues in the database in place of relays: each message is inserted by itself, and handled; needs no broker")
	if err := flags.Parse(args); err != nil {
		return opt, err
	}
	if opt.database == "" || opt.broker == "" && !opt.queue {
		return opt, errors.New("--database and --broker are needed, such as --database postgres://user:password@localhost:5432/postgres --broker amqp://guest:guest@localhost:5672/")
	}
	if opt.rows < 1 || opt.keys < 1 || opt.rounds < 3 || flags.NArg() > 0 {
		return opt, fmt.Errorf("--rows %d, --keys %d, --rounds %d, arguments %q: want at least 1 row, 1 key and 3 rounds, and no arguments", opt.rows, opt.keys, opt.rounds, flags.Args())
	}
	var err error
	if opt.match, err = regexp.Compile(*match); err != nil {
		return opt, fmt.Errorf("--run: %w", err)
	}
	return opt, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	opt, err := parse(args, stderr)
	if err != nil {
		return err
	}
	db, err := openDatabase(ctx, opt.database)
	if err != nil {
		return fmt.Errorf("the database cannot be used: %w: start it, or name another one with --database", err)
	}
	defer func() { err = errors.Join(err, db.close()) }()
	f, err := field(ctx, opt, db, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	f.them = slices.DeleteFunc(f.them, func(c contestant) bool { return !opt.match.MatchString(c.name()) })
	if len(f.them) == 0 {
		return errors.Join(fmt.Errorf("--run %q matches no peer", opt.match), errors.New(strings.Join(f.missing, "\n")))
	}
	c := contest{opt: opt, db: db, broker: f.broker, progress: stderr}
	results, err := c.run(ctx, f.us, f.them)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return err
	}
	versions, err := versions(ctx, db, f)
	if err != nil {
		return err
	}
	show := printTable
	if opt.json {
		show = printJSON
	}
	return errors.Join(show(stdout, results, versions, f.missing), writeChart(opt.chart, results, versions))
}

// contestants are those of one run.
type contestants struct {
	us      contestant
	them    []contestant
	missing []string // who could not take part, and why
	broker  *broker  // of relays
}

func (f *contestants) close() error {
	if f.broker == nil {
		return nil
	}
	return f.broker.close()
}

// field returns the contestants: relays, or queues.
func field(ctx context.Context, opt options, db *database, stderr io.Writer) (_ *contestants, err error) {
	f := &contestants{}
	if !opt.queue {
		if f.broker, err = openBroker(opt.broker); err != nil {
			return nil, fmt.Errorf("the broker cannot be used: %w: start it, or name another one with --broker", err)
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	us, err := newWaybill(ctx, db, f.broker, opt.keys)
	if err != nil {
		return nil, err
	}
	if opt.queue {
		f.us, f.them, f.missing, err = queuePeers(ctx, db, us, opt.database, stderr)
		return f, err
	}
	f.us = us
	f.them, err = peers(ctx, db, f.broker, opt.keys, stderr)
	return f, err
}

// peers returns the contestants that waybill is measured against.
func peers(ctx context.Context, db *database, b *broker, keys int, stderr io.Writer) ([]contestant, error) {
	if err := prepareRiver(ctx, db, stderr); err != nil {
		return nil, err
	}
	if err := prepareIdeal(ctx, db); err != nil {
		return nil, err
	}
	return []contestant{
		watermillDefaults(db, b, keys, stderr),
		watermillTuned(db, b, keys, stderr),
		watermillSharded(db, b, keys, stderr),
		riverDefaults(db, b, keys, stderr),
		riverTuned(db, b, keys, stderr),
		&ideal{db, b, keys},
	}, nil
}
