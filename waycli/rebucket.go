package waycli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

func (c *cli) rebucketCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "rebucket BUCKETS",
		Short: "Change the number of the outbox's buckets while it is in use",
		Long: fmt.Sprintf(`Change the number of the outbox's buckets, a power of two up to %d. Keys of one
bucket take turns, at dispatch and at the relay: more buckets let more of them go
at once. A new outbox has %d.

Dispatchers and relays may run. They wait while the keyed messages that are in the
outbox are moved, at most %d; with more it refuses. On PostgreSQL a transaction
that has dispatched and is open at that moment fails and must be run again
(outbox.ErrBucketsChanged). Processes see the new number by themselves. Order is
kept. It asks before it begins; --yes does not.

With --json: {"database", "from", "to", "rows", "stall", "dry_run"}.`, outbox.MaxBuckets, outbox.DefaultBuckets, admin.MaxRebucket),
		Example: `  waybill schema rebucket 256 --dry-run
  waybill schema rebucket 256 --yes`,
		Args: cobra.ExactArgs(1),
		RunE: c.run(func(ctx context.Context, s *session, args []string) error { return s.rebucket(ctx, args[0], dryRun) }),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count what would be moved")
	return cmd
}

// rebucketed is the result of schema rebucket.
type rebucketed struct {
	Database string `json:"database"`
	From     int    `json:"from"`
	To       int    `json:"to"`
	Rows     int    `json:"rows"`
	Stall    string `json:"stall,omitempty"`
	DryRun   bool   `json:"dry_run"`
}

func (s *session) rebucket(ctx context.Context, text string, dryRun bool) error {
	n, err := strconv.Atoi(text)
	if err != nil || !outbox.ValidBuckets(n) {
		return &Error{Usage, fmt.Errorf("%q is not a number of buckets", text), fmt.Sprintf("a power of two up to %d, such as 256", outbox.MaxBuckets)}
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	done, err := db.Rebucket(ctx, n, true)
	if errors.Is(err, errors.ErrUnsupported) {
		return &Error{Usage, err, "there is nothing to change: keys keep their order on SQLite without buckets"}
	}
	if err != nil {
		return err
	}
	if done.From == done.To {
		done.Rows = 0
	} else if !dryRun {
		if err := s.confirm(ctx, fmt.Sprintf("Change the outbox of %s from %d to %d buckets and move %s? Dispatchers and relays wait meanwhile.", done.Database, done.From, done.To, plural(done.Rows, "message"))); err != nil {
			return err
		}
		if done, err = db.Rebucket(ctx, n, false); err != nil {
			return err
		}
	}
	r := rebucketed{Database: done.Database, From: done.From, To: done.To, Rows: done.Rows, DryRun: dryRun}
	if done.Stall > 0 {
		r.Stall = done.Stall.Round(time.Millisecond).String()
	}
	switch {
	case s.flags.json:
		s.stdout.json(r)
	case dryRun:
		s.stdout.line("%s: from %d to %d buckets would move %s", plain(r.Database), r.From, r.To, plural(r.Rows, "message"))
	case r.From == r.To:
		s.stdout.line("%s has %d buckets", plain(r.Database), r.To)
	default:
		s.stdout.line("%s: from %d to %d buckets, moved %s, dispatchers and relays waited up to %s", plain(r.Database), r.From, r.To, plural(r.Rows, "message"), r.Stall)
	}
	return nil
}
