package waycli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

func (c *cli) failedCommand() *cobra.Command {
	return group(&cobra.Command{Use: "failed", Short: "Look at dead letters, and dispatch or remove them"},
		c.failedListCommand(),
		&cobra.Command{
			Use:   "show NUMBER",
			Short: "Show one dead letter, with its headers and body",
			Long: `Show one dead letter, with its headers and body, by its number in "failed list".

With --json: what "failed list" has, and "headers" and "body", or "body_base64"
where the body is no text.`,
			Args: cobra.ExactArgs(1),
			RunE: c.run(func(ctx context.Context, s *session, args []string) error { return s.failedShow(ctx, args) }),
		},
		c.failedRetryCommand(), c.failedRemoveCommand())
}

func (c *cli) failedListCommand() *cobra.Command {
	var q admin.FailedQuery
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the dead letters, oldest first",
		Long: `List the dead letters, oldest first: messages that a relay has skipped
(outbox.on_exhausted), or an operator ("outbox release --skip-head"). Their keys
continue without them; "failed retry" sends them after all. Removed ones are shown
with --state removed, without body and headers. Parked keys are in "outbox blocked".

With --json: {"messages": [{"number", "state", "transport", "name", "key", "id",
"created_at", "failures", "first_failed_at", "failed_at", "last_error",
"removed_at", "bytes"}], "more"}.`,
		Example: `  waybill failed list --key o-1
  waybill failed list --state skipped --json`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.failedList(ctx, q) }),
	}
	c.failedFlags(cmd, &q)
	p := cmd.Flags()
	p.StringVar(&q.State, "state", "", "only "+admin.Skipped+" or "+admin.Removed)
	p.Int64Var(&q.After, "after", 0, "only greater numbers")
	p.IntVar(&q.Limit, "limit", 50, "at most so many; 0 means all")
	return cmd
}

// failedFlags adds the flags that select messages.
func (c *cli) failedFlags(cmd *cobra.Command, q *admin.FailedQuery) {
	c.transportFlag(cmd, &q.Transport)
	cmd.Flags().StringVar(&q.Key, "key", "", "only this partition key")
	cmd.Flags().StringVar(&q.Name, "name", "", "only messages of this name")
}

func (s *session) failedList(ctx context.Context, q admin.FailedQuery) error {
	if q.Limit < 0 || q.After < 0 {
		return &Error{Usage, fmt.Errorf("--limit %d, --after %d: negative", q.Limit, q.After), ""}
	}
	if !slices.Contains([]string{"", admin.Skipped, admin.Removed}, q.State) {
		return &Error{Usage, fmt.Errorf("--state: unknown state %q", q.State), "skipped or removed"}
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	found, more, err := upTo(q.Limit, func(limit int) ([]admin.FailedMessage, error) {
		q.Limit = limit
		return db.Failed(ctx, q)
	})
	if err != nil {
		return err
	}
	if s.flags.json {
		s.stdout.json(struct {
			Messages []admin.FailedMessage `json:"messages"`
			More     bool                  `json:"more"`
		}{found, more})
		return nil
	}
	rows := make([][]any, len(found))
	for i, m := range found {
		rows[i] = []any{m.Number, m.State, m.Transport, m.Name, m.Key, m.ID, ago(m.FailedAt), m.Failures, m.Bytes, m.LastError}
	}
	s.stdout.table([]string{"NUMBER", "STATE", "TRANSPORT", "NAME", "KEY", "ID", "FAILED", "FAILURES", "BYTES", "ERROR"}, rows)
	if more {
		s.say("there are more: --limit 0 shows all")
	}
	return nil
}

// failedShown is the JSON output of failed show.
type failedShown struct {
	admin.FailedMessage
	Headers json.RawMessage `json:"headers"`
	Text    *string         `json:"body,omitempty"`
	Bytes   []byte          `json:"body_base64,omitempty"`
}

func (s *session) failedShow(ctx context.Context, args []string) error {
	numbers, err := failedNumbers(args)
	if err != nil {
		return err
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	m, err := s.oneFailed(ctx, db, numbers[0])
	if err != nil {
		return err
	}
	content, err := db.FailedContent(ctx, numbers[0])
	if err != nil {
		return err
	}
	text := string(content.Body)
	if s.flags.json {
		shown := failedShown{FailedMessage: m, Headers: content.Headers}
		if utf8.ValidString(text) {
			shown.Text = &text
		} else {
			shown.Bytes = content.Body
		}
		s.stdout.json(shown)
		return nil
	}
	rows := [][]any{
		{"state", m.State}, {"transport", m.Transport}, {"name", m.Name}, {"key", m.Key}, {"id", m.ID},
		{"created", m.CreatedAt.Format(time.RFC3339)}, {"failed", m.FailedAt.Format(time.RFC3339)}, {"failures", m.Failures}, {"error", m.LastError},
		{"headers", string(content.Headers)}, {"body", text},
	}
	s.stdout.table([]string{"NUMBER", strconv.FormatInt(m.Number, 10)}, rows)
	return nil
}

// oneFailed returns the message of that number, removed or not.
func (s *session) oneFailed(ctx context.Context, db Database, number int64) (m admin.FailedMessage, err error) {
	for _, state := range []string{"", admin.Removed} {
		found, err := db.Failed(ctx, admin.FailedQuery{Numbers: []int64{number}, State: state})
		if err != nil {
			return m, err
		}
		if len(found) == 1 {
			return found[0], nil
		}
	}
	return m, &Error{NotFound, fmt.Errorf("failed message %d: %w", number, waybill.ErrNotFound), fmt.Sprintf("`%s failed list` lists what there is", s.app.Name)}
}

func failedNumbers(args []string) ([]int64, error) {
	numbers := make([]int64, len(args))
	for i, arg := range args {
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || n <= 0 {
			return nil, &Error{Usage, fmt.Errorf("%q is not the number of a failed message", arg), "the first column of `failed list` has it"}
		}
		numbers[i] = n
	}
	return numbers, nil
}

// selectFailed returns the skipped messages selected by args or the flags of q. A
// number that is not one of them is an error.
func (s *session) selectFailed(ctx context.Context, db Database, q admin.FailedQuery, args []string, all bool) ([]admin.FailedMessage, error) {
	numbers, err := failedNumbers(args)
	if err != nil {
		return nil, err
	}
	filtered := q.Transport != "" || q.Key != "" || q.Name != ""
	switch {
	case len(numbers) == 0 && !filtered && !all:
		return nil, &Error{Usage, errors.New("which messages? nothing is selected"), "give numbers, --transport, --key, --name or --all"}
	case len(numbers) > 0 && (filtered || all):
		return nil, &Error{Usage, errors.New("numbers exclude --transport, --key, --name and --all"), "give one or the other"}
	}
	for _, number := range numbers {
		m, err := s.oneFailed(ctx, db, number)
		if err != nil {
			return nil, err
		}
		if m.State != admin.Skipped {
			return nil, &Error{Refused, fmt.Errorf("message %d is %s", number, m.State), ""}
		}
	}
	q.Numbers, q.State = numbers, admin.Skipped
	found, err := db.Failed(ctx, q)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, &Error{NotFound, fmt.Errorf("no failed message is selected: %w", waybill.ErrNotFound), fmt.Sprintf("`%s failed list` lists what there is", s.app.Name)}
	}
	return found, nil
}

// inChunks calls do for the numbers of found, some at a time, so that each
// transaction is short, and returns the sum of its results.
func (s *session) inChunks(ctx context.Context, found []admin.FailedMessage, message, verb string, do func(ctx context.Context, numbers ...int64) (int, error)) (int, error) {
	var done atomic.Int64
	stop := s.showProgress(progress{message: message, verb: verb, done: func() int { return int(done.Load()) }})
	defer stop()
	for chunk := range slices.Chunk(found, 100) {
		numbers := make([]int64, len(chunk))
		for i, m := range chunk {
			numbers[i] = m.Number
		}
		n, err := do(ctx, numbers...)
		done.Add(int64(n))
		if err != nil && done.Load() > 0 {
			err = &Error{Partial, err, fmt.Sprintf("%s %s; the same command does the rest", plural(int(done.Load()), "message"), verb)}
		}
		if err != nil {
			return int(done.Load()), err
		}
	}
	return int(done.Load()), nil
}

func (c *cli) failedRetryCommand() *cobra.Command {
	var q admin.FailedQuery
	var all bool
	cmd := &cobra.Command{
		Use:   "retry [NUMBER...]",
		Short: "Dispatch dead letters again",
		Long: `Dispatch dead letters again, under the ids that they have: after their cause
has been mended. They come behind what waits of their keys.

Without numbers it takes all that --transport, --key and --name select. Exit code
3 says that there are none, 4 that a message is not a skipped one.

With --json: {"retried"}.`,
		Example: `  waybill failed retry 17 18
  waybill failed retry --name invoice.send`,
		RunE: c.run(func(ctx context.Context, s *session, args []string) error { return s.failedRetry(ctx, q, args, all) }),
	}
	c.failedFlags(cmd, &q)
	cmd.Flags().BoolVar(&all, "all", false, "all that were skipped")
	return cmd
}

func (s *session) failedRetry(ctx context.Context, q admin.FailedQuery, args []string, all bool) error {
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	found, err := s.selectFailed(ctx, db, q, args, all)
	if err != nil {
		return err
	}
	n, err := s.inChunks(ctx, found, "retrying", "dispatched again", db.RetryFailed)
	if s.flags.json {
		s.stdout.json(struct {
			Retried int `json:"retried"`
		}{n})
	} else {
		s.stdout.line("%s dispatched again", plural(n, "message"))
	}
	return err
}

func (c *cli) failedRemoveCommand() *cobra.Command {
	var q admin.FailedQuery
	var all, dryRun bool
	cmd := &cobra.Command{
		Use:   "remove [NUMBER...]",
		Short: "Remove dead letters for good",
		Long: `Remove dead letters for good: they are never sent. What they carried is
deleted; that they were there stays on record ("failed list --state removed").

It counts first and asks; --yes does not ask, and without a terminal it is needed.

With --json: {"matching", "removed", "dry_run"}.`,
		Example: `  waybill failed remove 17
  waybill failed remove --key o-1 --dry-run`,
		RunE: c.run(func(ctx context.Context, s *session, args []string) error {
			return s.failedRemove(ctx, q, args, all, dryRun)
		}),
	}
	c.failedFlags(cmd, &q)
	cmd.Flags().BoolVar(&all, "all", false, "all that are not removed")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count")
	return cmd
}

func (s *session) failedRemove(ctx context.Context, q admin.FailedQuery, args []string, all, dryRun bool) error {
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	found, err := s.selectFailed(ctx, db, q, args, all)
	if err != nil {
		return err
	}
	result := struct {
		Matching int  `json:"matching"`
		Removed  int  `json:"removed"`
		DryRun   bool `json:"dry_run"`
	}{Matching: len(found), DryRun: dryRun}
	if !dryRun {
		if err := s.confirm(ctx, fmt.Sprintf("Remove %s for good?", plural(len(found), "failed message"))); err != nil {
			return err
		}
		result.Removed, err = s.inChunks(ctx, found, "removing", "removed", db.RemoveFailed)
	}
	switch {
	case s.flags.json:
		s.stdout.json(result)
	case dryRun:
		s.stdout.line("%s would be removed", plural(result.Matching, "failed message"))
	default:
		s.stdout.line("%s removed", plural(result.Removed, "failed message"))
	}
	if err == nil && !dryRun && result.Removed < result.Matching {
		return &Error{Partial, fmt.Errorf("%s left: another operator was quicker", plural(result.Matching-result.Removed, "message")), ""}
	}
	return err
}
