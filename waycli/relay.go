package waycli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
)

// relayFlags are the flags of relay.
type relayFlags struct {
	drain, standby bool
	workers        int
	admin          adminFlags
}

func (c *cli) relayCommand() *cobra.Command {
	var f relayFlags
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Move committed messages from the outbox to their transports",
		Long: `Move committed messages from the outbox of the configured database to their
transports, in commit order per key. All transports of the configuration are
relayed, except queues of the same database, which dispatch writes itself, and
sync.

It runs until SIGTERM or SIGINT, settles the batch in flight and exits with 0; a
second signal exits with 130. It connects at its start, and waits for a broker that
cannot be reached; "stats" shows it. With --drain it exits when nothing that is due is
left: with 0, with 5 if keys are blocked, with 130 after a signal, or with 6 if a broker
could not be reached at the start; then the other transports are drained before.

On PostgreSQL any number of relays share the work; one that dies or freezes is
replaced by the others. With the options notify and listen of its DSN a relay
hears of commits in other processes; without, and where it cannot, it looks for
messages every 250 ms or more often. One process relays a SQLite file: a second
one exits with 4, or waits with --standby until it can take over.

With --json, at the end: {"reason": "stopped", "drained" or "failed",
"published", "refused", "transports": [{"transport", "published", "refused", "pending",
"blocked_keys", "delayed"}]}, without the last three if they could not be counted.`,
		Example: `  waybill relay --standby --config /etc/waybill.yaml
  waybill relay --drain --json`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.relay(ctx, f) }),
	}
	p := cmd.Flags()
	p.BoolVar(&f.drain, "drain", false, "exit when nothing that is due is left")
	p.BoolVar(&f.standby, "standby", false, "wait while another process relays the database, and take over when it ends")
	p.IntVar(&f.workers, "workers", 0, "batches of each transport in flight at once (default 2; a SQLite file allows 1)")
	positive(cmd, "workers")
	f.admin.register(cmd)
	return cmd
}

// relay runs one outbox.Relay for each transport.
func (s *session) relay(ctx context.Context, f relayFlags) error {
	if f.workers > maxWorkers {
		return &Error{Usage, fmt.Errorf("--workers: %d is not between 1 and %d", f.workers, maxWorkers), ""}
	}
	cfg, err := s.config()
	if err != nil {
		return err
	}
	transports := leavingDatabase(cfg)
	if len(transports) == 0 {
		return errNoRelay()
	}
	unlisten, err := s.listenAdmin(ctx, f.admin)
	if err != nil {
		return err
	}
	defer unlisten()
	s.need = connectionsBesides + relayConnections(transports, f)
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	if db.Traits().IdleTimeout == 0 && f.workers > 1 {
		return &Error{Usage, fmt.Errorf("--workers: %s allows 1", cfg.Database.Scheme), "leave it out"}
	}
	counts := newCounts(transports...)
	runs, err := s.relays(ctx, transports, f, counts)
	if err != nil {
		return err
	}
	if !f.standby {
		// Held to the end, so that no other process takes the lock between transports.
		release, err := db.StartRelay(ctx)
		if err != nil {
			return err
		}
		defer release()
	}
	held := func() error { return nil }
	if f.drain {
		runs, held = apart(runs)
	}
	err = s.runShown(ctx, runs, progress{
		message: "relaying", verb: "published",
		done:    func() int { return counts.total().published },
		figures: func() []figure { return leftIn(ctx, db, transports) },
	})
	err = errors.Join(err, held())
	reason := "stopped"
	switch {
	case err != nil:
		reason = "failed"
	case f.drain && ctx.Err() == nil:
		reason = "drained"
	}
	if f.drain && reason == "stopped" {
		err = errInterrupted
	}
	return errors.Join(err, s.relayResult(ctx, db, transports, counts, reason))
}

// relayConnections returns how many connections relays use.
func relayConnections(transports []string, f relayFlags) int {
	return (2*max(f.workers, 2) + 1) * len(transports)
}

// relays returns the Run of a relay for each transport.
func (s *session) relays(ctx context.Context, transports []string, f relayFlags, counts *counts) (runs []func(context.Context) error, err error) {
	db, err := s.database(ctx)
	if err != nil {
		return nil, err
	}
	cfg := outbox.RelayConfig{
		Drain: f.drain, Standby: f.standby, Workers: f.workers, PublishDeadline: s.cfg.Outbox.PublishDeadline,
		MaxAttempts: s.cfg.Outbox.Retry.MaxAttempts, OnExhausted: policies(s.cfg.Outbox), Pipelined: s.cfg.Outbox.Ordering == config.Pipelined, Log: s.log,
		Observer: waybill.Observers{counts, s.observer()},
	}
	for _, transport := range transports {
		to, err := s.publisher(ctx, transport)
		if err != nil {
			return nil, err
		}
		cfg.Transport = transport
		relay, err := outbox.NewRelay(db, to, cfg)
		if err != nil {
			return nil, &Error{Usage, fmt.Errorf("transport %q: %w", transport, err), fencedBy(transport, to)}
		}
		run := func(ctx context.Context) error {
			err := relay.Run(ctx)
			if broker := (*outbox.BrokerError)(nil); errors.As(err, &broker) {
				return s.brokerError(transport, broker.Err)
			}
			return err
		}
		runs, s.loops = append(runs, run), append(s.loops, relay.Alive)
	}
	return runs, nil
}

// policies returns the configured policy of each message name.
func policies(cfg config.Outbox) func(name string) outbox.Policy {
	route := routesOf(cfg.Routes)
	return func(name string) outbox.Policy {
		return outbox.Policy(cmp.Or(route(name).OnExhausted, cfg.OnExhausted))
	}
}

const (
	maxWorkers = 64
	// connectionsBesides is how many connections a command needs in addition to its
	// workers': for reports, counts and lookups.
	connectionsBesides = 4
)

// fencedBy names the settings that outbox.CheckFence compares.
func fencedBy(transport string, to outbox.Publisher) string {
	hint := "set outbox.idle_timeout or outbox.publish_deadline"
	if to.Traits().Heartbeat > 0 {
		hint += fmt.Sprintf(", or the option heartbeat of transports.%s.dsn", pathKey(transport))
	}
	return hint
}

// leftIn counts the pending rows of transports. It returns nil when the database does
// not answer: the relay logs that.
func leftIn(ctx context.Context, db Database, transports []string) []figure {
	var sum outbox.Backlog
	for _, transport := range transports {
		backlog, err := db.Backlog(ctx, transport)
		if err != nil {
			return nil
		}
		sum.Pending += backlog.Pending
		sum.Blocked += backlog.Blocked
	}
	return []figure{{"pending", sum.Pending}, {"blocked", sum.Blocked}}
}

// leavingDatabase returns the transports that a relay serves.
func leavingDatabase(cfg *config.Config) (transports []string) {
	for _, name := range transportNames(cfg) {
		if dsn := cfg.Transports[name].DSN; !inDatabase(dsn, cfg.Database) && dsn.Scheme != "sync" {
			transports = append(transports, name)
		}
	}
	return transports
}

func errNoRelay() error {
	return &Error{Usage, errors.New("there is nothing to relay: no transport leads out of the database"),
		"a queue:// of the same database needs no relay; a transport with ?database=DSN leads to another one"}
}

// runShown is runAll with its progress, which systemd hears of, too, and its history.
func (s *session) runShown(ctx context.Context, runs []func(context.Context) error, p progress) error {
	defer s.writeHistory(ctx)()
	defer s.showProgress(p)()
	defer s.notifySystemd(ctx, p)()
	defer s.admin.start(ctx, s)()
	return runAll(ctx, runs...)
}

// runAll runs fns until each has returned. An error of one cancels the rest.
func runAll(ctx context.Context, fns ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var first sync.Once
	var failure error
	var wg sync.WaitGroup
	for _, fn := range fns {
		wg.Go(func() {
			// One that returns the error of its context has ended as it was told.
			if err := fn(ctx); err != nil && !(ctx.Err() != nil && errors.Is(err, context.Canceled)) {
				first.Do(func() { failure = err })
				cancel(err)
			}
		})
	}
	wg.Wait()
	return failure
}

// apart returns fns that do not cancel each other by an error in runAll, and their errors.
func apart(fns []func(context.Context) error) (alone []func(context.Context) error, failed func() error) {
	errs := make([]error, len(fns))
	for i, fn := range fns {
		alone = append(alone, func(ctx context.Context) error {
			errs[i] = fn(ctx)
			return nil
		})
	}
	return alone, func() error { return errors.Join(errs...) }
}

// transportResult is the counts of a relay for one transport.
type transportResult struct {
	Transport string `json:"transport"`
	Published int    `json:"published"`
	Refused   int    `json:"refused"`
	*leftRows        // nil if they could not be counted
}

// leftRows counts the rows that a relay leaves.
type leftRows struct {
	Pending     int `json:"pending"`
	BlockedKeys int `json:"blocked_keys"`
	Delayed     int `json:"delayed"`
}

// countWithin bounds the final count of a relay that was stopped or failed: a service manager
// kills a process that does not end.
const countWithin = 5 * time.Second

// relayResult shows the counts of relays and the rows left, also after a signal.
func (s *session) relayResult(ctx context.Context, db Database, transports []string, counts *counts, reason string) error {
	if reason != "drained" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), countWithin)
		defer cancel()
	}
	stats, uncounted := db.OutboxStats(ctx)
	result := struct {
		Reason     string            `json:"reason"`
		Published  int               `json:"published"`
		Refused    int               `json:"refused"`
		Transports []transportResult `json:"transports"`
	}{Reason: reason}
	blocked := 0
	for _, transport := range transports {
		n := counts.of(transport)
		one := transportResult{Transport: transport, Published: int(n.published.Load()), Refused: int(n.refused.Load())}
		if uncounted == nil {
			one.leftRows = &leftRows{}
		}
		for _, left := range stats {
			if left.Transport == transport {
				one.leftRows = &leftRows{left.Pending, left.BlockedKeys, left.Delayed}
				blocked += left.BlockedKeys
			}
		}
		result.Transports = append(result.Transports, one)
		result.Published += one.Published
		result.Refused += one.Refused
	}
	if s.flags.json {
		s.stdout.json(result)
	} else {
		s.say("%s: %s published", reason, plural(result.Published, "message"))
	}
	switch {
	case uncounted != nil && reason == "drained":
		return uncounted
	case uncounted != nil:
		s.log.LogAttrs(ctx, slog.LevelWarn, "rows left in the outbox not counted", slog.Any("err", uncounted))
	case reason == "drained" && blocked > 0:
		return &Error{Partial, fmt.Errorf("%s blocked by a message that is refused", keysAre(blocked)),
			fmt.Sprintf("`%s outbox blocked` shows why, and how many wait; a relay goes on trying what is not parked", s.app.Name)}
	}
	return nil
}

func keysAre(n int) string {
	if n == 1 {
		return "1 key or route is"
	}
	return count(n) + " keys or routes are"
}
