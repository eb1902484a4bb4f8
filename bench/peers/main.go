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
	if err := flags.Parse(args); err != nil {
		return opt, err
	}
	if opt.database == "" || opt.broker == "" {
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
	broker, err := openBroker(opt.broker)
	if err != nil {
		return fmt.Errorf("the broker cannot be used: %w: start it, or name another one with --broker", err)
	}
	defer func() { err = errors.Join(err, broker.close()) }()

	us, err := newWaybill(ctx, db, broker, opt.keys)
	if err != nil {
		return err
	}
	them, err := peers(ctx, db, broker, opt.keys, stderr)
	if err != nil {
		return err
	}
	them = slices.DeleteFunc(them, func(c contestant) bool { return !opt.match.MatchString(c.name()) })
	if len(them) == 0 {
		return fmt.Errorf("--run %q matches no peer", opt.match)
	}
	c := contest{opt: opt, db: db, broker: broker, progress: stderr}
	results, err := c.run(ctx, us, them)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return err
	}
	versions, err := versions(ctx, db, broker)
	if err != nil {
		return err
	}
	if opt.json {
		return printJSON(stdout, results, versions)
	}
	return printTable(stdout, results, versions)
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
