package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waymysql"
)

// Options configures a run. The zero value of each field but Relay means its
// default.
type Options struct {
	Orders int           // how many; zero means 2000, three messages each
	Seed   uint64        // of all random choices; zero picks one
	Limit  time.Duration // for the whole run; zero means 55 s
	// Database is that of both services: a SQLite file, PostgreSQL, MySQL or
	// MariaDB, or the zero value for files in a temporary directory. Broker is a
	// SQLite file for its queue, RabbitMQ, or zero likewise. In servers the demo
	// creates schemas or prefixed tables, an exchange and a queue, which it
	// removes; files that have messages or demo tables in them already are refused.
	Database, Broker config.DSN
	// ConnString turns the DSN of a PostgreSQL into its client's connection string.
	ConnString func(config.DSN) (string, error)
	OpenMySQL  OpenMySQL
	// Relay is the command line of a relay process, to which the path of a
	// configuration file is appended.
	Relay []string
	// Progress receives the live view.
	Progress io.Writer
	// Live redraws the view in place, for a terminal.
	Live bool
}

// OpenMySQL opens the DSN of a MySQL or MariaDB.
type OpenMySQL func(ctx context.Context, dsn config.DSN, cfg waymysql.Config) (*waymysql.DB, error)

// Figures count the events so far. They may be read at any time.
type Figures struct {
	committed, rolledBack, delivered, handled, suppressed, lostAcks, failures, kills atomic.Int64
}

// minimumFor is how long the order service takes at least, so that there is
// time to kill relays at work, and killEvery how often one is killed.
const (
	minimumFor = 6 * time.Second
	killMin    = 120 * time.Millisecond
	killMax    = 420 * time.Millisecond
)

// Run runs the demo and returns its verdict. An error means that there is none,
// because something could not be started or ctx has ended.
func Run(ctx context.Context, opt Options) (Verdict, error) {
	opt.Orders = cmp.Or(opt.Orders, 2000)
	opt.Limit = cmp.Or(opt.Limit, 55*time.Second)
	for opt.Seed == 0 {
		opt.Seed = rand.Uint64() >> 32
	}
	if opt.Orders < 1 {
		return Verdict{}, fmt.Errorf("demo: %d orders", opt.Orders)
	}
	interrupted := ctx
	ctx, cancel := context.WithTimeout(ctx, opt.Limit)
	defer cancel()

	site, err := newDeployment(ctx, opt)
	if err != nil {
		return Verdict{}, err
	}
	defer site.close()
	figures := &Figures{}
	start := time.Now()
	view := newView(opt, figures, site)

	fleet := newFleet(opt, site, figures)
	if err := fleet.start(); err != nil {
		return Verdict{}, err
	}
	defer fleet.stop()
	billing, err := newBilling(opt, site, figures)
	if err != nil {
		return Verdict{}, err
	}

	// Four loops, each ended by its context; the order service ends by itself.
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	killing, stopKilling := context.WithCancel(ctx)
	defer stopKilling()
	killed, billed, shown := loop(killing, fleet.kill), loop(serving, billing.run), loop(serving, view.run)
	err = newShop(opt, site, figures).run(ctx)
	stopKilling()
	err = errors.Join(err, <-killed)
	drained := false
	if err == nil {
		drained, err = site.waitUntilEmpty(ctx, billing.seen.inHand)
	}
	stopServing()
	err = errors.Join(err, <-billed, <-shown)
	if interrupted.Err() != nil {
		err = interrupted.Err()
	}
	if err != nil {
		return Verdict{}, fmt.Errorf("demo: %w", err)
	}
	verdict, err := judge(context.WithoutCancel(ctx), site, billing, figures)
	verdict.Seed, verdict.Orders, verdict.Drained, verdict.Seconds = opt.Seed, opt.Orders, drained, time.Since(start).Round(10*time.Millisecond).Seconds()
	verdict.OK = verdict.OK && drained
	view.done()
	return verdict, err
}

// loop runs fn in a goroutine and delivers its error.
func loop(ctx context.Context, fn func(context.Context) error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	return done
}

// dice returns a source of random choices for one part of the demo, the same
// for the same seed.
func dice(opt Options, part uint64) *rand.Rand { return rand.New(rand.NewPCG(opt.Seed, part)) }
