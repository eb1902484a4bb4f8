package waycli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/suggest"
)

func (c *cli) schedulesTriggerCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "trigger NAME",
		Short: "Have a schedule send one message now, outside of its timing",
		Long: `Have a process that runs the schedule send one message, within five seconds, whatever
its timing says. The message is that of a tick in the second of the request, with an id
for this request alone. The regular ticks come as if nothing had been requested.

It asks first. A request that waits already is not doubled. While no process runs the
schedule, or its message cannot be dispatched, the request waits, and "schedules list"
shows it. Exit code 3 says that no process has ever run a schedule of that name.

With --json: {"name", "requested", "requested_at", "overdue", "dry_run"}. Requested is
false for a request that was waiting, whose time is requested_at then. Overdue says that
no process runs the schedule, as far as its last tick and request show.`,
		Example: `  waybill schedules trigger nightly --dry-run
  waybill schedules trigger nightly --yes`,
		Args: cobra.ExactArgs(1),
		RunE: c.run(func(ctx context.Context, s *session, args []string) error {
			return s.schedulesTrigger(ctx, args[0], dryRun)
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show whether it would be requested")
	return cmd
}

// schedulesTriggerResult is the JSON of schedules trigger.
type schedulesTriggerResult struct {
	Name        string     `json:"name"`
	Requested   bool       `json:"requested"`
	RequestedAt *time.Time `json:"requested_at"`
	Overdue     bool       `json:"overdue"`
	DryRun      bool       `json:"dry_run"`
}

func (s *session) schedulesTrigger(ctx context.Context, name string, dryRun bool) error {
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	row, late, err := s.findSchedule(ctx, db, name)
	if err != nil {
		return err
	}
	result := schedulesTriggerResult{Name: name, RequestedAt: row.RequestedAt, Overdue: late > 0, DryRun: dryRun}
	if row.RequestedAt == nil && !dryRun {
		if err := s.confirm(ctx, fmt.Sprintf("Have %s send one message now, outside of its timing?", name)); err != nil {
			return err
		}
		at, added, err := db.TriggerSchedule(ctx, name)
		if err != nil {
			return err
		}
		result.Requested, result.RequestedAt = added, &at
	}
	if s.flags.json {
		s.stdout.json(result)
		return nil
	}
	s.stdout.line("%s", result.text(late))
	return nil
}

// findSchedule returns a schedule that a process has run, and how long it has been overdue.
func (s *session) findSchedule(ctx context.Context, db Database, name string) (row admin.Schedule, late time.Duration, err error) {
	rows, now, err := db.Schedules(ctx)
	if err != nil {
		return row, 0, err
	}
	known := []string{}
	for _, row := range rows {
		if row.Name == name {
			return row, row.Overdue(now), nil
		}
		known = append(known, row.Name)
	}
	hint := suggest.Hint(name, known, "schedules")
	if _, ok := s.cfg.Schedules[name]; ok {
		hint = "the configuration has it, but no process has run it yet: start `run`, and then trigger it"
	}
	return row, 0, &Error{NotFound, fmt.Errorf("no process has run a schedule %q: %w", name, waybill.ErrNotFound), hint}
}

// text is the result in words. Late is how long the schedule has been overdue.
func (r schedulesTriggerResult) text(late time.Duration) string {
	text := r.Name + " would be requested"
	switch {
	case r.Requested:
		text = r.Name + " requested"
	case r.RequestedAt != nil:
		text = r.Name + " was already requested at " + r.RequestedAt.Format(time.RFC3339)
	}
	switch {
	case r.Overdue:
		text += fmt.Sprintf(": it waits, because the schedule is overdue for %s: no process runs it, or it cannot dispatch its message", short(late))
	case r.Requested:
		text += ": a process that runs it sends the message within 5s"
	}
	return text
}
