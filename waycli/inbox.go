package waycli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
)

func (c *cli) inboxCommand() *cobra.Command {
	return group(&cobra.Command{Use: "inbox", Short: "Look at what is remembered of handled messages, and prune it"},
		&cobra.Command{
			Use:   "stats",
			Short: "Count what is remembered, by handler",
			Long: `Count the handled messages that are remembered, by handler.

With --json: {"inbox": [{"handler", "entries", "oldest", "newest"}]}.`,
			Example: "  waybill inbox stats",
			Args:    cobra.NoArgs,
			RunE:    c.run(func(ctx context.Context, s *session, _ []string) error { return s.inboxStats(ctx) }),
		},
		&cobra.Command{
			Use:   "lookup ID",
			Short: "Say which handlers have handled a message",
			Long: `Say which handlers have handled a message. ID is a message id or an idempotency
key, which is looked up under all message names. Exit code 3 says that none has,
or that it is forgotten. It lists where the message of an id is stored, handled or not,
such as in a retry queue or among the dead letters, and the messages that it has caused
(causation id), as far as they are stored: it searches up to 5,000 messages of each table,
the newest of most.

With --json: {"entries": [{"handler", "dedup_key", "message_id", "processed_at"}],
"stored": [{"source", "transport", "row", "name", "key", "id", "created_at",
"causation_id", "correlation_id"}]}.`,
			Example: "  waybill inbox lookup 01a1fc09-a0cf-7710-b8d1-97ca6868221e\n  waybill inbox lookup order-42",
			Args:    cobra.ExactArgs(1),
			RunE:    c.run(func(ctx context.Context, s *session, args []string) error { return s.inboxLookup(ctx, args[0]) }),
		},
		c.inboxListCommand(),
		c.inboxPruneCommand(),
	)
}

func (c *cli) inboxListCommand() *cobra.Command {
	var handler string
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the messages that were handled last, newest first",
		Long: `List the messages that were handled last by handlers with an inbox, newest first.
With --handler only those of one, among the latest 5,000 of all.

With --json: {"entries": [{"handler", "dedup_key", "message_id", "processed_at"}],
"more"}.`,
		Example: "  waybill inbox list\n  waybill inbox list --handler billing --limit 10",
		Args:    cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error {
			return s.inboxList(ctx, handler, limit)
		}),
	}
	cmd.Flags().StringVar(&handler, "handler", "", "only this handler")
	cmd.Flags().IntVar(&limit, "limit", 50, "at most so many; 0 means all")
	return cmd
}

func (s *session) inboxList(ctx context.Context, handler string, limit int) error {
	if limit < 0 {
		return &Error{Usage, fmt.Errorf("--limit: %d is negative", limit), "0 means all"}
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	entries, more, err := upTo(limit, func(limit int) ([]admin.InboxEntry, error) {
		return db.InboxEntries(ctx, admin.InboxQuery{Handler: handler, Limit: limit})
	})
	if err != nil {
		return err
	}
	printPage(s, "entries", entries, more, entryHeader, entryRow)
	return nil
}

var entryHeader = []string{"HANDLER", "DEDUP KEY", "MESSAGE", "PROCESSED"}

func entryRow(e admin.InboxEntry) []any {
	return []any{e.Handler, e.DedupKey, e.MessageID, e.ProcessedAt.Format(time.RFC3339)}
}

func (s *session) inboxStats(ctx context.Context) error {
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	stats, err := db.InboxStats(ctx)
	if err != nil {
		return err
	}
	if s.flags.json {
		s.stdout.json(map[string]any{"inbox": stats})
		return nil
	}
	s.inboxTable(stats)
	return nil
}

func (s *session) inboxTable(stats []admin.InboxStats) {
	tableOf(s.stdout, []string{"HANDLER", "ENTRIES", "OLDEST", "NEWEST"}, stats, func(h admin.InboxStats) []any {
		return []any{h.Handler, count(h.Entries), ago(h.Oldest), ago(h.Newest)}
	})
}

func (s *session) inboxLookup(ctx context.Context, id string) error {
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	entries, unhandled := db.InboxLookup(ctx, id)
	if unhandled != nil && !errors.Is(unhandled, waybill.ErrNotFound) {
		return unhandled
	}
	message, err := waybill.ParseMessageID(id)
	if err != nil && len(entries) > 0 {
		message, err = entries[0].MessageID, nil // of an idempotency key
	}
	stored := []admin.StoredMessage{} // [] and not null in JSON
	if err == nil {
		if stored, err = db.FindMessages(ctx, message, admin.FindLimit); err != nil {
			return err
		}
	}
	switch {
	case len(entries) == 0 && len(stored) == 0:
	case s.flags.json:
		s.stdout.json(map[string]any{"entries": entries, "stored": stored})
	default:
		tableOf(s.stdout, entryHeader, entries, entryRow)
		s.storedTable(stored)
	}
	if unhandled != nil {
		return &Error{NotFound, unhandled, "no handler has recorded it, or inbox.retention has passed; an id or an idempotency key finds it"}
	}
	return nil
}

// storedTable lists the rows of a message and of its effects.
func (s *session) storedTable(stored []admin.StoredMessage) {
	if len(stored) == 0 {
		return
	}
	s.stdout.line("\nStored")
	tableOf(s.stdout, []string{"SOURCE", "ROW", "TRANSPORT", "NAME", "KEY", "MESSAGE", "AGE", "CAUSED BY"}, stored, func(m admin.StoredMessage) []any {
		return []any{m.Source, m.Row, m.Transport, m.Name, m.Key, m.ID, ago(m.CreatedAt), cmp.Or(m.CausationID, "-")}
	})
}

func (c *cli) inboxPruneCommand() *cobra.Command {
	var older duration
	var lower, dryRun bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Forget messages that were handled long ago",
		Long: `Forget messages that were handled longer ago than inbox.retention, or than
--older-than if that is more. Less is refused: a message that is forgotten while
it still counts as new would be handled twice. So is less than what the database has
recorded: each application with a handler records its retention there at its first
message, and the longest counts. To shorten it, restart every application with the
shorter one, set inbox.retention, and use --lower-retention once.

It counts first and asks; --yes does not ask, and without a terminal it is needed.

With --json: {"older_than", "matching", "removed", "dry_run"}.`,
		Example: `  waybill inbox prune --older-than 60d --dry-run
  waybill inbox prune --yes`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error {
			return s.inboxPrune(ctx, time.Duration(older), lower, dryRun)
		}),
	}
	cmd.Flags().Var(&older, "older-than", "age, such as 30d (default: inbox.retention)")
	positive(cmd, "older-than")
	cmd.Flags().BoolVar(&lower, "lower-retention", false, "record inbox.retention in the database, in place of a longer one")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count")
	return cmd
}

// pruned is the result of inbox prune.
type pruned struct {
	OlderThan string `json:"older_than"`
	Matching  int    `json:"matching"`
	Removed   int    `json:"removed"`
	DryRun    bool   `json:"dry_run"`
}

func (s *session) inboxPrune(ctx context.Context, older time.Duration, lower, dryRun bool) error {
	cfg, err := s.config()
	if err != nil {
		return err
	}
	retention := cfg.Inbox.Retention
	if older == 0 {
		older = retention
	}
	age := config.FormatDuration(older)
	if older < retention {
		return &Error{Refused, fmt.Errorf("--older-than %s is less than inbox.retention, %s: a message handled between the two could be handled again", age, config.FormatDuration(retention)),
			"lower inbox.retention first, so that older messages are refused"}
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	recorded, err := db.InboxRetention(ctx)
	if err != nil {
		return err
	}
	shorter := older < recorded
	if shorter && !lower {
		return &Error{Refused, &admin.RetentionError{Age: older, Recorded: recorded}, "restart every application with the shorter retention; then --lower-retention records inbox.retention in the database"}
	}
	result := pruned{OlderThan: age, DryRun: dryRun}
	if result.Matching, err = db.InboxOlder(ctx, older); err != nil {
		return err
	}
	if dryRun {
		s.pruneResult(result)
		return nil
	}
	if shorter {
		if err := s.confirm(ctx, fmt.Sprintf("Does every application use a retention of %s or less, and not %s as recorded?", config.FormatDuration(retention), config.FormatDuration(recorded))); err != nil {
			return err
		}
	}
	if result.Matching > 0 {
		if err := s.confirm(ctx, fmt.Sprintf("Remove %s of messages handled more than %s ago?", plural(result.Matching, "inbox entry"), age)); err != nil {
			return err
		}
	}
	if shorter { // after both questions: a no to either changes nothing
		if err := db.SetInboxRetention(ctx, retention); err != nil {
			return err
		}
	}
	if result.Matching > 0 {
		result.Removed, err = s.pruneShown(ctx, db, older)
	}
	s.pruneResult(result)
	return err
}

// pruneShown prunes the inbox with its progress.
func (s *session) pruneShown(ctx context.Context, db Database, older time.Duration) (int, error) {
	var removed atomic.Int64
	stop := s.showProgress(progress{message: "pruning", verb: "removed", done: func() int { return int(removed.Load()) }})
	defer stop()
	n, err := db.InboxPrune(ctx, older, func(n int) { removed.Add(int64(n)) })
	if err != nil && n > 0 {
		err = &Error{Partial, err, fmt.Sprintf("%s removed; the same command removes the rest", plural(n, "entry"))}
	}
	return n, err
}

func (s *session) pruneResult(r pruned) {
	switch {
	case s.flags.json:
		s.stdout.json(r)
	case r.DryRun:
		s.stdout.line("%s older than %s would be removed", plural(r.Matching, "entry"), r.OlderThan)
	default:
		s.stdout.line("%s older than %s removed", plural(r.Removed, "entry"), r.OlderThan)
	}
}
