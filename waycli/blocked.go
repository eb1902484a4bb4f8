package waycli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

func (c *cli) outboxBlockedCommand() *cobra.Command {
	var transport, key string
	var limit int
	cmd := &cobra.Command{
		Use:   "blocked",
		Short: "List the routes and keys whose next message is refused, longest first",
		Long: `List what is being refused, longest first: routes (message names that the broker
has nowhere to put), keys, and single messages without a key. Nothing of a key
overtakes its head. A relay goes on trying what is retrying; "outbox release" has
it tried at once. A parked key (outbox.on_exhausted) is not tried until "outbox
release" brings its rows back. Policy is what becomes of an entry after
outbox.retry.max_attempts. With --key it lists what holds this key: its own entry, or
the route of its first message.

With --json: {"keys": [{"transport", "route", "key", "row", "head_id",
"head_name", "failures", "first_failed_at", "next_attempt_at", "last_error",
"state", "policy", "waiting", "parked"}], "more"}. Route is set for a route alone,
row for a message without key. State is retrying or parked; next_attempt_at is
null while it is parked. Waiting counts the messages in the outbox, parked those of
them that are set aside.`,
		Example: "  waybill outbox blocked\n  waybill outbox blocked --key order-42 --json",
		Args:    cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error {
			return s.outboxBlocked(ctx, transport, key, limit)
		}),
	}
	c.transportFlag(cmd, &transport)
	cmd.Flags().StringVar(&key, "key", "", "only this partition key: what holds it?")
	cmd.Flags().IntVar(&limit, "limit", 50, "at most so many; 0 means all")
	return cmd
}

func (s *session) outboxBlocked(ctx context.Context, transport, key string, limit int) error {
	if limit < 0 {
		return &Error{Usage, fmt.Errorf("--limit: %d is negative", limit), "0 means all"}
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	keys, more, err := upTo(limit, func(limit int) ([]admin.BlockedKey, error) {
		if key == "" {
			return db.Blocked(ctx, transport, limit)
		}
		return holding(ctx, db, admin.BlockedKeysQuery{Transport: transport, Key: key, Limit: limit})
	})
	if err != nil {
		return err
	}
	printPage(s, "keys", keys, more, []string{"TRANSPORT", "BLOCKED", "STATE", "POLICY", "WAITING", "PARKED", "FAILURES", "SINCE", "NEXT IN", "HEAD", "ID", "ERROR"}, func(k admin.BlockedKey) []any {
		next := "-"
		if k.NextAttemptAt != nil {
			next = short(max(0, time.Until(*k.NextAttemptAt)))
		}
		return []any{k.Transport, blockedWhat(k), k.State, k.Policy, k.Waiting, k.Parked, k.Failures, ago(k.FirstFailedAt), next, k.HeadName, k.HeadID, k.LastError}
	})
	return nil
}

// holding returns the entries that hold a key: its own, and the blocked route of its first
// message, with the messages of the key that wait.
func holding(ctx context.Context, db admin.Database, q admin.BlockedKeysQuery) ([]admin.BlockedKey, error) {
	found, err := db.BlockedKeys(ctx, q)
	if err != nil {
		return nil, err
	}
	const maxRoutes = 1000
	entries, err := db.BlockedKeys(ctx, admin.BlockedKeysQuery{Transport: q.Transport, Limit: maxRoutes})
	if err != nil {
		return nil, err
	}
	read := map[string][]admin.OutboxMessage{} // by transport, which may have many blocked routes
	for _, e := range entries {
		if e.Route == "" {
			break // routes are the first of the list
		}
		messages, known := read[e.Transport]
		if !known {
			if messages, err = db.Outbox(ctx, admin.OutboxQuery{Transport: e.Transport, Key: q.Key}); err != nil {
				return nil, err
			}
			messages = slices.DeleteFunc(messages, func(m admin.OutboxMessage) bool { return m.DueAt != nil })
			read[e.Transport] = messages
		}
		if len(messages) > 0 && messages[0].Name == e.Route {
			e.Waiting = len(messages)
			found = append(found, e)
		}
	}
	return found, nil
}

// blockedWhat names k as "outbox release" takes it.
func blockedWhat(k admin.BlockedKey) string {
	switch {
	case k.Route != "":
		return "--route " + k.Route
	case k.Key == "":
		return fmt.Sprintf("--row %d", k.Row)
	}
	return k.Key
}

func (c *cli) outboxReleaseCommand() *cobra.Command {
	var q admin.BlockedQuery
	var all bool
	cmd := &cobra.Command{
		Use:   "release [KEY]",
		Short: "Have blocked keys and routes tried at once",
		Long: `Have blocked keys and routes tried at once, instead of when their wait is over,
and parked keys at all: after their cause has been mended. The messages of a parked
key come back in batches and in order. It removes nothing, so it does not ask; a
message that is refused again waits again, or is parked again.

--skip-head moves the refused message to the dead letters first, from where
"failed retry" sends it after all: its key continues without it. A route has no such
message, and is tried.

KEY is a partition key, --route a message name, --row the number of a message
without key, as "outbox blocked" shows them; --all is all of them. --transport
narrows it down. Exit code 3 says that nothing of that was blocked.

With --json: {"released"}.`,
		Example: `  waybill outbox release o-1
  waybill outbox release --all --transport events`,
		Args: cobra.MaximumNArgs(1),
		RunE: c.run(func(ctx context.Context, s *session, args []string) error {
			if err := checkRelease(args, &q, all); err != nil {
				return err
			}
			return s.outboxRelease(ctx, q)
		}),
	}
	c.transportFlag(cmd, &q.Transport)
	p := cmd.Flags()
	p.StringVar(&q.Route, "route", "", "only this route, a message name")
	p.Int64Var(&q.Row, "row", 0, "only this message without key")
	p.BoolVar(&all, "all", false, "all that is blocked")
	p.BoolVar(&q.SkipHead, "skip-head", false, "without the refused message of each")
	return cmd
}

// checkRelease takes the key out of args. Exactly one of the selections is allowed.
func checkRelease(args []string, q *admin.BlockedQuery, all bool) error {
	if len(args) == 1 && args[0] == "" {
		return &Error{Usage, errors.New("the key is empty"), "a message without key is selected with --row"}
	}
	if len(args) == 1 {
		q.Key = args[0]
	}
	selected := 0
	for _, is := range []bool{q.Key != "", q.Route != "", q.Row != 0, all} {
		if is {
			selected++
		}
	}
	switch {
	case q.Row < 0:
		return &Error{Usage, fmt.Errorf("--row: %d is negative", q.Row), "outbox list --json has the number of each row"}
	case selected == 0:
		return &Error{Usage, errors.New("release what? nothing is selected"), "give a KEY, --route, --row or --all"}
	case q.Route != "" && q.SkipHead:
		return &Error{Usage, errors.New("a route has no refused message to skip"), "bind a queue to it, and leave --skip-head out"}
	case selected > 1:
		return &Error{Usage, errors.New("KEY, --route, --row and --all exclude each other"), "give one of them"}
	}
	return nil
}

func (s *session) outboxRelease(ctx context.Context, q admin.BlockedQuery) error {
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	released, err := db.Release(ctx, q)
	if err != nil {
		return err
	}
	if released == 0 {
		return &Error{NotFound, fmt.Errorf("nothing to release: %w", waybill.ErrNotFound), fmt.Sprintf("`%s outbox blocked` lists what is blocked", s.app.Name)}
	}
	if s.flags.json {
		s.stdout.json(map[string]any{"released": released})
		return nil
	}
	if q.SkipHead {
		routes := ""
		if q.Key == "" && q.Row == 0 {
			routes = "; a route has none, and is tried now"
		}
		s.stdout.line("%s released: each refused message is a dead letter, `%s failed list --source outbox` shows it%s", plural(released, "blocked entry"), s.app.Name, routes)
		return nil
	}
	s.stdout.line("%s released: a relay tries them now", plural(released, "blocked entry"))
	return nil
}
