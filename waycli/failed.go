package waycli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
)

func (c *cli) failedCommand() *cobra.Command {
	return group(&cobra.Command{
		Use: "failed", Short: "Look at dead letters, and dispatch, edit or remove them",
		Long: `Look at dead letters, and dispatch, edit or remove them: messages that a relay or
an operator has skipped, and those that a worker could not handle. "groups" comes
first: one line for each kind of error.`,
	},
		c.failedListCommand(), c.failedGroupsCommand(), c.failedShowCommand(),
		c.failedRetryCommand(), c.failedEditCommand(), c.failedRemoveCommand())
}

var failedStates = []string{admin.Skipped, admin.Failed, admin.Retrying, admin.Removed}

func (c *cli) failedListCommand() *cobra.Command {
	var f failedFilter
	var q admin.FailedQuery
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the dead letters, oldest first",
		Long: `List the dead letters, oldest first. Their keys continue without them. State is

  skipped    by a relay (outbox.on_exhausted) or "outbox release --skip-head"
  failed     in a worker, without retries left or unrecoverably, or by "retries release
             --skip-head"
  retrying   by "failed retry", in the retry queue of its transport
  removed    by "failed remove", or by "failed retry --as-new", which dispatched it under
             another id: body and headers are gone; only with --state

Parked keys are no dead letters: "outbox blocked" has those of relays, "retries
list" those of workers.
` + filterHelp + `

With --json: {"messages": [{"number", "state", "source", "transport", "name", "key",
"id", "created_at", "failures", "first_failed_at", "failed_at", "last_error",
"removed_at", "bytes", "failure_transport", "handler", "error_type",
"fingerprint"}], "more"}. The last four are of workers.`,
		Example: `  waybill failed list --key o-1
  waybill failed list --handler billing --since 2h --json`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.failedList(ctx, f, q) }),
	}
	c.failedFlags(cmd, &f)
	p := cmd.Flags()
	p.StringVar(&q.State, "state", "", "only "+strings.Join(failedStates, ", "))
	p.Int64Var(&q.After, "after", 0, "only greater numbers")
	p.IntVar(&q.Limit, "limit", 50, "at most so many; 0 means all")
	return cmd
}

func (s *session) failedList(ctx context.Context, f failedFilter, page admin.FailedQuery) error {
	if page.Limit < 0 || page.After < 0 {
		return &Error{Usage, fmt.Errorf("--limit %d, --after %d: negative", page.Limit, page.After), "--limit 0 means all, --after 0 begins at the first"}
	}
	if page.State != "" && !slices.Contains(failedStates, page.State) {
		return &Error{Usage, fmt.Errorf("--state: unknown state %q", page.State), strings.Join(failedStates, ", ")}
	}
	q, err := f.query(time.Now())
	if err != nil {
		return err
	}
	q.State, q.After = page.State, page.After
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	found, more, err := upTo(page.Limit, func(limit int) ([]admin.FailedMessage, error) {
		q.Limit = limit
		return db.Failed(ctx, q)
	})
	if err != nil {
		return err
	}
	s.mentionStores()
	printPage(s, "messages", found, more, []string{"NUMBER", "STATE", "TRANSPORT", "NAME", "KEY", "ID", "FAILED", "FAILURES", "BYTES", "HANDLER", "ERROR"}, func(m admin.FailedMessage) []any {
		return []any{m.Number, m.State, m.Transport, m.Name, m.Key, m.ID, ago(m.FailedAt), m.Failures, m.Bytes, m.Handler, m.LastError}
	})
	return nil
}

// mentionStores says which transports have their failed messages in another database.
func (s *session) mentionStores() {
	for _, name := range transportNames(s.cfg) {
		if dsn := s.cfg.StoreOf(name); !dsn.Equal(s.cfg.Database) {
			s.say("the failed messages of workers on %s are in %s: --database shows them", name, dsn)
		}
	}
}

func (c *cli) failedGroupsCommand() *cobra.Command {
	var f failedFilter
	cmd := &cobra.Command{
		Use:   "groups",
		Short: "Count the dead letters by kind of error, most first",
		Long: `Count the dead letters by kind of error, most first. Errors that differ in
numbers, ids and times only have one fingerprint; --fingerprint of the other
commands selects its messages. Errors of relays have none: each text is a group.
` + filterHelp + `

With --json: {"groups": [{"fingerprint", "messages", "first_failed_at",
"last_failed_at", "names", "handlers", "example", "error"}]}. Example is the number
of the newest message, error its last error.`,
		Example: `  waybill failed groups --since 1d
  waybill failed retry --fingerprint 5d41402abc4b2a76`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.failedGroups(ctx, f) }),
	}
	c.failedFlags(cmd, &f)
	return cmd
}

func (s *session) failedGroups(ctx context.Context, f failedFilter) error {
	q, err := f.query(time.Now())
	if err != nil {
		return err
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	groups, err := db.FailedGroups(ctx, q)
	if err != nil {
		return err
	}
	s.mentionStores()
	if s.flags.json {
		s.stdout.json(map[string]any{"groups": groups})
		return nil
	}
	tableOf(s.stdout, []string{"MESSAGES", "FIRST", "LAST", "NAME", "HANDLER", "FINGERPRINT", "EXAMPLE", "ERROR"}, groups, func(g admin.FailedGroup) []any {
		return []any{count(g.Messages), ago(g.FirstFailedAt), ago(g.LastFailedAt), several(g.Names), several(g.Handlers), g.Fingerprint, g.Example, g.Error}
	})
	return nil
}

// several returns the first of names, and how many there are besides.
func several(names []string) string {
	switch len(names) {
	case 0:
		return "-"
	case 1:
		return names[0]
	}
	return fmt.Sprintf("%s +%d", names[0], len(names)-1)
}
