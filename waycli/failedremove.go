package waycli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func (c *cli) failedRemoveCommand() *cobra.Command {
	var f failedFilter
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "remove [NUMBER...]",
		Short: "Remove dead letters for good",
		Long: `Remove dead letters for good: they are never sent. What they carried is
deleted; that they were there stays on record ("failed list --state removed"), with
their keys and errors, and in the audit the body that "failed edit" has replaced.

It counts first and asks; --yes does not ask, and without a terminal it is needed.
--dry-run counts by the same query.
` + filterHelp + `

With --json: {"matching", "removed", "dry_run"}.`,
		Example: `  waybill failed remove 17
  waybill failed remove --key o-1 --dry-run`,
		RunE: c.run(func(ctx context.Context, s *session, args []string) error {
			return s.failedRemove(ctx, f, args, dryRun)
		}),
	}
	c.failedFlags(cmd, &f)
	cmd.Flags().BoolVar(&f.All, "all", false, "all that are not removed")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count")
	return cmd
}

func (s *session) failedRemove(ctx context.Context, f failedFilter, args []string, dryRun bool) error {
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	found, err := s.selectFailed(ctx, db, &f, args)
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
		b := batches{s: s, found: found, filter: f, message: "removing", verb: "removed", command: "failed remove", do: db.RemoveFailed}
		err = b.run(ctx)
		result.Removed = int(b.done.Load())
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
		err = overtaken(result.Matching - result.Removed)
	}
	return err
}
