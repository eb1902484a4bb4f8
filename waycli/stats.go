package waycli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
)

func (c *cli) statsCommand() *cobra.Command {
	var failIf []string
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count what is in the outbox, the queues and the inbox",
		Long: `Count what is in the outbox, the queues and the inbox of the configured database.

With --json: {"outbox": [...], "queues": [{"queue", "pending", "in_hand",
"retrying", "oldest_age_seconds"}], "inbox": [...]}, the lists without detail here
as "outbox stats" and "inbox stats" have them.
` + failIfHelp,
		Example: `  waybill stats --json
  waybill stats --fail-if 'oldest_age>5m' --fail-if 'blocked>0'`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.stats(ctx, failIf) }),
	}
	failIfFlag(cmd, &failIf)
	return cmd
}

func (s *session) stats(ctx context.Context, failIf []string) error {
	conditions, err := parseConditions(failIf)
	if err != nil {
		return err
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	var all struct {
		Outbox []admin.OutboxStats `json:"outbox"`
		Queues []admin.QueueStats  `json:"queues"`
		Inbox  []admin.InboxStats  `json:"inbox"`
	}
	if all.Outbox, err = db.OutboxStats(ctx); err != nil {
		return err
	}
	if all.Queues, err = db.QueueStats(ctx); err != nil {
		return err
	}
	if all.Inbox, err = db.InboxStats(ctx); err != nil {
		return err
	}
	if s.flags.json {
		s.stdout.json(all)
		return check(conditions, figuresOf(all.Outbox))
	}
	s.stdout.line("Outbox")
	s.outboxTable(all.Outbox)
	s.stdout.line("\nQueues")
	rows := make([][]any, len(all.Queues))
	for i, q := range all.Queues {
		rows[i] = []any{q.Queue, count(q.Pending), seconds(q.OldestAgeSeconds), count(q.InHand), count(q.Retrying)}
	}
	s.stdout.table([]string{"QUEUE", "PENDING", "OLDEST", "IN HAND", "RETRYING"}, rows)
	s.stdout.line("\nInbox")
	s.inboxTable(all.Inbox)
	return check(conditions, figuresOf(all.Outbox))
}
