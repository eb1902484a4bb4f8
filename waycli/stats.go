package waycli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
)

func (c *cli) statsCommand() *cobra.Command {
	var failIf []string
	var last duration
	var limit *duration
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count what is in the outbox, the queues, the retry queues and the inbox; list relays and workers",
		Long: `Count what is in the outbox, the queues and the inbox of the configured database, in the
queues of transports in other databases and at brokers, and the failed messages of
workers in it and in the stores of transports (transports.NAME.store), and list the
relays and the processes with workers that have reported within the last minute, with
what keeps relays from publishing or from hearing of commits, and the paused transports.
(Relays of a SQLite file do not report.) Problems are messages for which no relay reports
or, of a SQLite file, whose transport is not configured, and queues that could not be
counted, as their broker is away.

With --json: {"outbox": [...], "queues": [{"queue", "pending", "in_flight",
"retrying", "oldest_age_seconds", "database"}], "broker_queues": [{"transport", "queue",
"ready", "consumers"}], "retries": [{"transport", "retrying", "parked",
"failed"}], "inbox": [...], "relays": [{"transport", "host", "pid", "started_at",
"seen_at", "age_seconds", "problem", "degraded", "since"}], "workers": [...], "paused": [...],
"problems": [{"where", "problem"}]}, the lists without detail here as "outbox stats", "inbox
stats" and "workers list" have them. Database is left out for the configured one; ready are
messages that no consumer has. Retrying of retries includes parked; failed are dead letters.
Age_seconds is how old a report is by the clock of the database. Problem of relays says why
nothing goes out, degraded why a relay that is to listen finds messages by polling alone. They
and since are left out while nothing is amiss.

With --history it sums up the last minutes instead, up to 7 days, as relay, consume and run
have counted them: for each transport and message, and for each of its handlers. P50, P95 and
P99 are of the time from dispatch to the end of handling. With --json: {"since", "until",
"series": [{"transport", "message", "handler", "dispatched", "published", "refused", "handled",
"failed", "retried", "duplicates", "skipped", "publish_mean_seconds", "handling_mean_seconds",
"critical_seconds": {"p50", "p95", "p99"}}]}.
` + failIfHelp,
		Example: `  waybill stats --json
  waybill stats --fail-if 'oldest_age>5m' --fail-if 'blocked>0'
  waybill stats --history 1h`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error {
			return within(ctx, *limit, func(ctx context.Context) error {
				switch {
				case last != 0 && len(failIf) > 0:
					return errHistoryOnly
				case last != 0:
					return s.statsHistory(ctx, time.Duration(last))
				}
				return s.stats(ctx, failIf)
			})
		}),
	}
	cmd.Flags().Var(&last, "history", "sum up the last minutes instead, such as 1h")
	failIfFlag(cmd, &failIf)
	limit = timeoutFlag(cmd)
	return cmd
}

func (s *session) stats(ctx context.Context, failIf []string) error {
	conditions, err := parseConditions(failIf, allFigures)
	if err != nil {
		return err
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	own, err := s.collectStats(ctx, db)
	if err != nil {
		return err
	}
	all := statsOutput{Outbox: own.Outbox, Retries: own.Retries, Inbox: own.Inbox, Relays: own.Relays}
	var uncounted error
	if all.Queues, all.Problems, uncounted, err = s.queueCounts(ctx, own.Queues); err != nil {
		return err
	}
	if all.Workers, err = workersOf(ctx, db); err != nil {
		return err
	}
	if all.Paused, err = db.PausedTransports(ctx); err != nil {
		return err
	}
	all.Problems = append(all.Problems, s.notRelayed(db, own)...)
	var unreachable []statsProblem
	all.BrokerQueues, unreachable = s.brokerQueues(ctx)
	all.Problems = append(all.Problems, unreachable...)
	figures := figuresOf(all.Outbox)
	addWorkers(figures, all.Queues, all.Retries)
	if s.flags.json {
		s.stdout.json(all)
		return checkComplete(conditions, figures, uncounted)
	}
	s.stdout.line("Outbox")
	s.outboxTable(all.Outbox)
	s.stdout.line("\nQueues")
	s.queueTables(all.Queues, all.BrokerQueues)
	s.stdout.line("\nFailed in workers")
	s.workerTable(all.Retries)
	s.stdout.line("\nInbox")
	s.inboxTable(all.Inbox)
	if db.Traits().KeepsReports {
		s.stdout.line("\nRelays")
		s.relayTable(all.Relays)
	}
	s.stdout.line("\nWorkers")
	s.workerList(all.Workers)
	s.pauseLines(all.Paused)
	s.problemTable(all.Problems)
	return checkComplete(conditions, figures, uncounted)
}

// notRelayed are transports with messages that no relay publishes: none reports or, where relays
// do not, the file lacks the transport, as after a change of its name.
func (s *session) notRelayed(db Database, all statsResult) []statsProblem {
	problems := []statsProblem{} // [] and not null in JSON
	if db.Traits().KeepsReports {
		for _, t := range withoutRelay(all.Outbox, all.Relays) {
			problems = append(problems, statsProblem{t.Transport, fmt.Sprintf("%s pending, no relay for %s", count(t.Pending), t.Transport)})
		}
		return problems
	}
	for _, t := range all.Outbox {
		if _, ok := s.cfg.Transports[t.Transport]; !ok && t.Pending > 0 && len(s.cfg.Transports) > 0 {
			problems = append(problems, statsProblem{t.Transport, fmt.Sprintf("%s pending, and the configuration has no transport %s", count(t.Pending), t.Transport)})
		}
	}
	return problems
}

func (s *session) problemTable(problems []statsProblem) {
	if len(problems) == 0 {
		return
	}
	s.stdout.line("\nProblems")
	tableOf(s.stdout, []string{"WHERE", "PROBLEM"}, problems, func(p statsProblem) []any { return []any{p.Where, p.Problem} })
}

// statsOutput is the JSON of stats.
type statsOutput struct {
	Outbox       []admin.OutboxStats `json:"outbox"`
	Queues       []queueCount        `json:"queues"`
	BrokerQueues []brokerQueue       `json:"broker_queues"`
	Retries      []admin.WorkerStats `json:"retries"`
	Inbox        []admin.InboxStats  `json:"inbox"`
	Relays       []admin.Relay       `json:"relays"`
	Workers      []admin.Worker      `json:"workers"`
	Paused       []admin.Pause       `json:"paused"`
	Problems     []statsProblem      `json:"problems"`
}

// statsResult is what stats and top read in databases.
type statsResult struct {
	Outbox  []admin.OutboxStats `json:"outbox"`
	Queues  []admin.QueueStats  `json:"queues"`
	Retries []admin.WorkerStats `json:"retries"`
	Inbox   []admin.InboxStats  `json:"inbox"`
	Relays  []admin.Relay       `json:"relays"`
}

// collectStats reads the figures of db, and of the stores of transports.
func (s *session) collectStats(ctx context.Context, db Database) (all statsResult, err error) {
	if all.Outbox, err = db.OutboxStats(ctx); err != nil {
		return all, err
	}
	if all.Queues, err = db.QueueStats(ctx); err != nil {
		return all, err
	}
	if all.Retries, err = s.workerStats(ctx); err != nil {
		return all, err
	}
	if all.Inbox, err = db.InboxStats(ctx); err != nil {
		return all, err
	}
	all.Relays, err = db.Relays(ctx)
	return all, err
}

// workerStats counts the failed messages of workers in the configured database and the
// stores of transports.
func (s *session) workerStats(ctx context.Context) ([]admin.WorkerStats, error) {
	all := []admin.WorkerStats{} // [] and not null in JSON
	seen := map[Database]bool{}
	add := func(db Database, err error) error {
		if err != nil || seen[db] {
			return err
		}
		seen[db] = true
		stats, err := db.WorkerStats(ctx)
		all = append(all, stats...)
		return err
	}
	if err := add(s.database(ctx)); err != nil {
		return nil, err
	}
	for _, name := range transportNames(s.cfg) {
		if err := add(s.storeOf(ctx, name)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (s *session) workerTable(stats []admin.WorkerStats) {
	tableOf(s.stdout, []string{"TRANSPORT", "RETRYING", "PARKED", "DEAD LETTERS"}, stats, func(w admin.WorkerStats) []any {
		return []any{w.Transport, count(w.Retrying), count(w.Parked), count(w.Failed)}
	})
}

func (s *session) relayTable(relays []admin.Relay) {
	tableOf(s.stdout, []string{"TRANSPORT", "HOST", "PID", "UP", "STATE"}, relays, func(r admin.Relay) []any {
		return []any{r.Transport, r.Host, r.PID, short(r.Ago(r.StartedAt)), relayState(r)}
	})
}

// withoutRelay returns the transports with pending messages for which no relay reports.
func withoutRelay(stats []admin.OutboxStats, relays []admin.Relay) (all []admin.OutboxStats) {
	for _, t := range stats {
		reports := func(r admin.Relay) bool { return r.Transport == t.Transport && r.Ago(r.SeenAt) <= silence }
		if t.Pending > 0 && !slices.ContainsFunc(relays, reports) {
			all = append(all, t)
		}
	}
	return all
}

// silence is the age of a relay's last report from which on it counts as silent: a
// working relay reports every few seconds.
const silence = 20 * time.Second

func relayState(r admin.Relay) string {
	switch {
	case r.Ago(r.SeenAt) > silence:
		return "silent for " + short(r.Ago(r.SeenAt))
	case r.Problem != "" && r.Since != nil:
		return fmt.Sprintf("cannot publish for %s: %s", short(r.Ago(*r.Since)), trimmed(r.Problem))
	case r.Degraded != "" && r.Since != nil:
		return fmt.Sprintf("works, degraded for %s (polls only): %s", short(r.Ago(*r.Since)), trimmed(r.Degraded))
	}
	return "works"
}
