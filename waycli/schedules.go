package waycli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/schedule"
)

// Run runs until its context ends, and returns nil then.
type Run func(ctx context.Context) error

// RunSchedules makes the Run of schedules that dispatch to an outbox. It is for the packages
// of drivers.
func RunSchedules[TX any](db interface {
	schedule.Store[TX]
	outbox.Writer[TX]
}, cfg outbox.Config, log *slog.Logger, schedules []schedule.Schedule) (Run, error) {
	out, err := outbox.New(db, cfg)
	if err != nil {
		return nil, err
	}
	s, err := schedule.New(db, out, schedule.Config{Log: log}, schedules...)
	if err != nil {
		return nil, err
	}
	return s.Run, nil
}

// schedules returns the Run of the schedules of the configuration.
func (s *session) schedules(ctx context.Context) ([]func(context.Context) error, error) {
	d, err := s.newDispatcher(ctx, "")
	if err != nil {
		return nil, err
	}
	var all []schedule.Schedule
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Schedules)) {
		one, err := d.schedule(name, s.cfg.Schedules[name])
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	db, err := s.database(ctx)
	if err != nil {
		return nil, err
	}
	run, err := db.Schedule(d.out, s.log, all)
	if err != nil {
		return nil, err
	}
	return []func(context.Context) error{run}, nil
}

// schedule checks a schedule of the configuration as a message to dispatch.
func (d *dispatcher) schedule(name string, c config.Schedule) (schedule.Schedule, error) {
	in := func(key string, err error) error {
		path := "schedules." + pathKey(name) + "." + key
		return &Error{Usage, fmt.Errorf("%s: %s: %w", d.s.cfg.Origins()["schedules."+pathKey(name)+".message"], path, err), hintOf(err, d.s.app.Name)}
	}
	if err := d.checkName(c.Message); err != nil {
		return schedule.Schedule{}, in("message", err)
	}
	timing, err := c.Timing()
	if err != nil {
		return schedule.Schedule{}, in("cron", err)
	}
	body := cmp.Or(c.Body, "{}")
	p, err := d.prepare(message{Name: c.Message, Key: c.Key, Body: []byte(body)})
	if err != nil {
		return schedule.Schedule{}, in("body", err)
	}
	return schedule.Schedule{Name: name, Timing: timing, Missed: c.Missed, Message: func(time.Time) any {
		return waybill.RawMessage{Name: p.name, Key: p.key, Body: []byte(body)}
	}}, nil
}

func errNoSchedules() error {
	return &Error{Usage, errors.New("the configuration has no schedules"), `add one, such as schedules: { nightly: { message: report.send, cron: "30 2 * * *" } }`}
}

func (c *cli) schedulesCommand() *cobra.Command {
	return group(&cobra.Command{Use: "schedules", Short: "List the schedules, which dispatch messages at given times, and trigger them"},
		c.schedulesListCommand(), c.schedulesTriggerCommand())
}

func (c *cli) schedulesListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the schedules with their last and next ticks",
		Long: `List the schedules of the configured database, and those of the configuration that no
process has run yet. Times are by the clock of the database, in UTC. "run" runs those
of its configuration; so can any number of processes. State is

  waiting            its next tick is to come
  requested          "schedules trigger" has asked for a message, which is not sent yet
  overdue for 5m     no process runs it, or it cannot dispatch its message
  new                no process has run it yet
  changed            the configuration has another timing: a restart of "run" adopts it

and ", requested" behind it where an overdue or changed one has been triggered.

With --json: {"schedules": [{"name", "spec", "message", "missed", "last_tick", "next_tick",
"requested_at", "state"}]}. State is one word; message is empty for a schedule of another
configuration; last_tick is null before the first tick, requested_at without a request.`,
		Example: `  waybill schedules list
  waybill schedules list --json`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.schedulesList(ctx) }),
	}
}

// A listedSchedule is a schedule as `schedules list` prints it.
type listedSchedule struct {
	admin.Schedule
	Message string `json:"message"`
	State   string `json:"state"`
	overdue time.Duration
}

func (s *session) schedulesList(ctx context.Context) error {
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	rows, now, err := db.Schedules(ctx)
	if err != nil {
		return err
	}
	listed, err := listSchedules(s.cfg.Schedules, rows, now)
	if err != nil {
		return err
	}
	if s.flags.json {
		s.stdout.json(map[string]any{"schedules": listed})
		return nil
	}
	tableOf(s.stdout, []string{"NAME", "SPEC", "MESSAGE", "MISSED", "LAST TICK", "NEXT TICK", "STATE"}, listed, func(one listedSchedule) []any {
		last := "-"
		if one.LastTick != nil {
			last = one.LastTick.Format(time.RFC3339)
		}
		return []any{one.Name, one.Spec, cmp.Or(one.Message, "-"), one.Missed, last, one.NextTick.Format(time.RFC3339), one.stateText()}
	})
	return nil
}

// stateText is the state with its age, and with a pending request.
func (l listedSchedule) stateText() string {
	text := l.State
	if text == "overdue" {
		text += " for " + short(l.overdue)
	}
	if l.RequestedAt != nil && text != "requested" {
		text += ", requested"
	}
	return text
}

// listSchedules joins the schedules of a configuration with the rows of the database.
func listSchedules(configured map[string]config.Schedule, rows []admin.Schedule, now time.Time) ([]listedSchedule, error) {
	listed := []listedSchedule{}
	known := map[string]bool{}
	for _, row := range rows {
		known[row.Name] = true
		one := listedSchedule{Schedule: row, State: "waiting", overdue: row.Overdue(now)}
		switch {
		case one.overdue > 0:
			one.State = "overdue"
		case row.RequestedAt != nil:
			one.State = "requested"
		}
		if c, ok := configured[row.Name]; ok {
			timing, err := c.Timing()
			if err != nil {
				return nil, err
			}
			if one.Message = c.Message; timing.String() != row.Spec {
				one.State = "changed"
			}
		}
		listed = append(listed, one)
	}
	for name, c := range configured {
		if known[name] {
			continue
		}
		timing, err := c.Timing()
		if err != nil {
			return nil, err
		}
		row := admin.Schedule{Name: name, Spec: timing.String(), Missed: string(cmp.Or(c.Missed, schedule.Latest)), NextTick: timing.Next(now)}
		listed = append(listed, listedSchedule{Schedule: row, Message: c.Message, State: "new"})
	}
	slices.SortFunc(listed, func(a, b listedSchedule) int { return cmp.Compare(a.Name, b.Name) })
	return listed, nil
}
