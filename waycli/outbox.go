package waycli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
)

func (c *cli) outboxCommand() *cobra.Command {
	return group(&cobra.Command{Use: "outbox", Short: "Look at messages that are not published yet"},
		c.outboxListCommand(), c.outboxBlockedCommand(), c.outboxReleaseCommand(), c.outboxStatsCommand())
}

func (c *cli) outboxListCommand() *cobra.Command {
	var q admin.OutboxQuery
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List messages that are not published yet, oldest first, then the delayed",
		Long: `List messages that are not published yet, oldest first, then the delayed ones.

With --json: {"messages": [{"row", "transport", "name", "key", "id", "created_at",
"due_at", "bytes", "blocked"}], "more"}. More says that --limit left some out.`,
		Example: `  waybill outbox list --key o-1
  waybill outbox list --after 4711 --json`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.outboxList(ctx, q) }),
	}
	p := cmd.Flags()
	c.transportFlag(cmd, &q.Transport)
	p.StringVar(&q.Key, "key", "", "only this partition key")
	p.StringVar(&q.Name, "name", "", "only messages of this name")
	p.Int64Var(&q.After, "after", 0, "only rows with a greater number; leaves out the delayed")
	p.IntVar(&q.Limit, "limit", 50, "at most so many; 0 means all")
	return cmd
}

// transportFlag adds --transport.
func (c *cli) transportFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "transport", "", "only this transport")
	_ = cmd.RegisterFlagCompletionFunc("transport", c.completeFrom(transportNames))
}

func (s *session) outboxList(ctx context.Context, q admin.OutboxQuery) error {
	if q.Limit < 0 || q.After < 0 {
		return &Error{Usage, fmt.Errorf("--limit %d, --after %d: negative", q.Limit, q.After), "--limit 0 means all, --after 0 begins at the first"}
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	messages, more, err := upTo(q.Limit, func(limit int) ([]admin.OutboxMessage, error) {
		q.Limit = limit
		return db.Outbox(ctx, q)
	})
	if err != nil {
		return err
	}
	printPage(s, "messages", messages, more, []string{"ROW", "TRANSPORT", "NAME", "KEY", "ID", "AGE", "BYTES", "STATE"}, func(m admin.OutboxMessage) []any {
		return []any{m.Row, m.Transport, m.Name, m.Key, m.ID, ago(m.CreatedAt), m.Bytes, stateOf(m)}
	})
	return nil
}

// upTo lists up to limit items, and reports whether there are more. Zero means all.
func upTo[T any](limit int, list func(limit int) ([]T, error)) (found []T, more bool, err error) {
	ask := limit
	if limit > 0 {
		ask++ // one more shows that there are more
	}
	if found, err = list(ask); err != nil {
		return nil, false, err
	}
	if more = limit > 0 && len(found) > limit; more {
		found = found[:limit]
	}
	return found, more, nil
}

// printPage prints what upTo returns: with --json under a name.
func printPage[T any](s *session, name string, items []T, more bool, header []string, row func(T) []any) {
	if s.flags.json {
		s.stdout.json(map[string]any{name: items, "more": more})
		return
	}
	tableOf(s.stdout, header, items, row)
	if more {
		s.say("there are more: --limit 0 shows all")
	}
}

func stateOf(m admin.OutboxMessage) string {
	switch {
	case m.Blocked: // also a delayed message that cannot be promoted
		return "blocked"
	case m.DueAt != nil:
		return "due " + short(-time.Until(*m.DueAt))
	}
	return "pending"
}

func (c *cli) outboxStatsCommand() *cobra.Command {
	var transport string
	var failIf []string
	var limit *duration
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count what is in the outbox, by transport",
		Long: `Count what is in the outbox, by transport.

With --json: {"outbox": [{"transport", "pending", "oldest_age_seconds",
"blocked_keys", "delayed", "failed"}]}.
` + failIfHelp,
		Example: `  waybill outbox stats --fail-if 'pending>1000' --fail-if 'oldest_age>5m'`,
		Args:    cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error {
			return within(ctx, *limit, func(ctx context.Context) error { return s.outboxStats(ctx, transport, failIf) })
		}),
	}
	c.transportFlag(cmd, &transport)
	failIfFlag(cmd, &failIf)
	limit = timeoutFlag(cmd)
	return cmd
}

func (s *session) outboxStats(ctx context.Context, transport string, failIf []string) error {
	conditions, err := parseConditions(failIf, outboxFigures)
	if err != nil {
		return err
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	all, err := db.OutboxStats(ctx)
	if err != nil {
		return err
	}
	stats := make([]admin.OutboxStats, 0, len(all))
	for _, one := range all {
		if transport == "" || one.Transport == transport {
			stats = append(stats, one)
		}
	}
	if transport != "" && len(stats) == 0 { // a condition on a name that is mistyped would never hold
		if _, err := s.transport(transport); err != nil {
			return err
		}
	}
	if s.flags.json {
		s.stdout.json(map[string]any{"outbox": stats})
	} else {
		s.outboxTable(stats)
	}
	return check(conditions, figuresOf(stats))
}

func (s *session) outboxTable(stats []admin.OutboxStats) {
	tableOf(s.stdout, []string{"TRANSPORT", "PENDING", "OLDEST", "BLOCKED KEYS", "DELAYED", "FAILED"}, stats, func(o admin.OutboxStats) []any {
		return []any{o.Transport, count(o.Pending), seconds(o.OldestAgeSeconds), count(o.BlockedKeys), count(o.Delayed), count(o.Failed)}
	})
}

func seconds(s float64) string {
	if s == 0 {
		return "-"
	}
	return short(time.Duration(s * float64(time.Second)))
}
