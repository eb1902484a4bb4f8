package waycli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

func (c *cli) retriesCommand() *cobra.Command {
	return group(&cobra.Command{Use: "retries", Short: "Look at the messages that wait for a retry, and release parked keys"},
		c.retriesListCommand(), c.retriesReleaseCommand())
}

func (c *cli) retriesListCommand() *cobra.Command {
	var q admin.RetriesQuery
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the messages of the retry queues, in their order",
		Long: `List the messages of the retry queues, in their order: those that a worker could
not handle yet, and the later ones of their keys. State is

  due in 9s   it waits for its next attempt
  parked      it and its key wait for "retries release" (on_exhausted: park)
  in flight   a worker has it
  waiting     it comes as soon as those of its key before it are gone

With --json: {"messages": [{"row", "transport", "name", "key", "id", "created_at",
"failures", "crashes", "due_at", "parked", "in_flight", "bytes", "last_error"}],
"more"}. Crashes counts the processes that ended in its handlers.`,
		Example: `  waybill retries list --transport orders
  waybill retries list --key o-1 --json`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.retriesList(ctx, q) }),
	}
	c.transportFlag(cmd, &q.Transport)
	p := cmd.Flags()
	p.StringVar(&q.Key, "key", "", "only this partition key")
	p.Int64Var(&q.After, "after", 0, "only greater rows")
	p.IntVar(&q.Limit, "limit", 50, "at most so many; 0 means all")
	return cmd
}

func (s *session) retriesList(ctx context.Context, q admin.RetriesQuery) error {
	if q.Limit < 0 || q.After < 0 {
		return &Error{Usage, fmt.Errorf("--limit %d, --after %d: negative", q.Limit, q.After), "--limit 0 means all, --after 0 begins at the first"}
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	found, more, err := upTo(q.Limit, func(limit int) ([]admin.RetryingMessage, error) {
		q.Limit = limit
		return db.Retries(ctx, q)
	})
	if err != nil {
		return err
	}
	s.mentionStores()
	printPage(s, "messages", found, more, []string{"ROW", "TRANSPORT", "NAME", "KEY", "ID", "AGE", "FAILURES", "STATE", "ERROR"}, func(m admin.RetryingMessage) []any {
		return []any{m.Row, m.Transport, m.Name, m.Key, m.ID, ago(m.CreatedAt), m.Failures, retryState(m), m.LastError}
	})
	return nil
}

func retryState(m admin.RetryingMessage) string {
	switch {
	case m.Parked:
		return "parked"
	case m.InFlight:
		return "in flight"
	case m.Failures > 0 && m.DueAt != nil && time.Until(*m.DueAt) > 0: // of others it is that of the key's first
		return "due in " + short(time.Until(*m.DueAt))
	}
	return "waiting"
}

func (c *cli) retriesReleaseCommand() *cobra.Command {
	var transport string
	var all, skip bool
	cmd := &cobra.Command{
		Use:   "release [KEY]",
		Short: "Have parked messages of workers tried again",
		Long: `Have parked messages of workers tried again at once, and the later ones of their
keys after them, in order: after their cause has been mended. It removes nothing, so
it does not ask; a message that fails once more is parked again.

--skip-head moves the parked message of each key to the dead letters instead, with its
attempts, from where "failed retry" sends it after all: its key continues without it.
They are kept under the failure_transport of the transport.

KEY is a partition key, --all all that are parked. --transport narrows it down. Exit
code 3 says that nothing of that was parked.

With --json: {"released"}.`,
		Example: `  waybill retries release o-1
  waybill retries release o-1 --skip-head
  waybill retries release --all --transport orders`,
		Args: cobra.MaximumNArgs(1),
		RunE: c.run(func(ctx context.Context, s *session, args []string) error {
			switch {
			case len(args) == 1 && args[0] == "":
				return &Error{Usage, errors.New("the key is empty"), "a message without a key is never parked: see `failed list`"}
			case len(args) == 0 && !all:
				return &Error{Usage, errors.New("release what? nothing is selected"), "give a KEY or --all; `retries list` shows what is parked"}
			case len(args) == 1 && all:
				return &Error{Usage, errors.New("KEY and --all exclude each other"), "give one of them"}
			}
			key := ""
			if len(args) == 1 {
				key = args[0]
			}
			return s.retriesRelease(ctx, transport, key, skip)
		}),
	}
	c.transportFlag(cmd, &transport)
	cmd.Flags().BoolVar(&all, "all", false, "all that is parked")
	cmd.Flags().BoolVar(&skip, "skip-head", false, "without the parked message of each key")
	return cmd
}

func (s *session) retriesRelease(ctx context.Context, transport, key string, skip bool) error {
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	transports := []string{transport}
	if transport == "" {
		if transports, err = parkedTransports(ctx, db); err != nil {
			return err
		}
	}
	released := 0
	for _, transport := range transports {
		filter, _ := json.Marshal(map[string]string{"transport": transport, "key": key})
		n, err := s.releaseParked(admin.WithAction(ctx, admin.Action{Actor: admin.Actor(), Filter: filter}), db, transport, key, skip)
		if released += n; err != nil && released > 0 {
			return &Error{Partial, err, fmt.Sprintf("%s released; the same command does the rest", plural(released, "message"))}
		}
		if err != nil {
			return err
		}
	}
	if released == 0 {
		return &Error{NotFound, fmt.Errorf("nothing to release: %w", waybill.ErrNotFound), fmt.Sprintf("`%s retries list` shows what is parked; keys of the outbox are released with `%s outbox release`", s.app.Name, s.app.Name)}
	}
	if s.flags.json {
		s.stdout.json(map[string]any{"released": released})
		return nil
	}
	if skip {
		s.stdout.line("%s skipped: each is a dead letter, `%s failed list --source worker` shows it", plural(released, "parked message"), s.app.Name)
		return nil
	}
	s.stdout.line("%s released: a worker tries them now", plural(released, "parked message"))
	return nil
}

func (s *session) releaseParked(ctx context.Context, db Database, transport, key string, skip bool) (int, error) {
	if skip {
		return db.SkipParked(ctx, transport, key, s.cfg.FailureTransportOf(transport))
	}
	return db.ReleaseRetries(ctx, transport, key)
}

// parkedTransports returns the transports with parked messages.
func parkedTransports(ctx context.Context, db Database) (names []string, err error) {
	stats, err := db.WorkerStats(ctx)
	for _, one := range stats {
		if one.Parked > 0 {
			names = append(names, one.Transport)
		}
	}
	return names, err
}
