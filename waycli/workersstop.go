package waycli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/suggest"
)

// workersStopFlags are the flags of workers stop.
type workersStopFlags struct {
	transport         string
	all, wait, dryRun bool
	timeout           duration
}

func (c *cli) workersStopCommand() *cobra.Command {
	f := workersStopFlags{timeout: duration(time.Minute)}
	cmd := &cobra.Command{
		Use:   "stop [NAME...]",
		Short: "Have processes that handle messages finish what is in flight and end",
		Long: `Have processes that handle messages end as they do at SIGTERM, on whatever host they
are: each sees the request at its next report, within five seconds, takes no more
messages, finishes those in flight and exits with 0, so that its supervisor starts the
next one. A process that starts later is not stopped.

NAME is a name of "workers list" or an id of its JSON; --transport takes the processes
that consume a transport, and ends them whole, with their other transports; --all takes
all. It counts and asks first. With --wait it waits until they have ended: exit code 5
says that some have not, within --timeout. One that was killed stays listed, and awaited,
for a minute.

With --json: {"matching", "requested", "ended", "dry_run"}; ended is counted with --wait.`,
		Example: `  waybill workers stop --all --dry-run
  waybill workers stop --transport orders --wait --yes
  waybill workers stop web-1/4711 --yes`,
		RunE: c.run(func(ctx context.Context, s *session, names []string) error { return s.workersStop(ctx, names, f) }),
	}
	c.transportFlag(cmd, &f.transport)
	p := cmd.Flags()
	p.BoolVar(&f.all, "all", false, "all processes")
	p.BoolVar(&f.wait, "wait", false, "wait until they have ended")
	p.Var(&f.timeout, "timeout", "how long to wait at most, with --wait")
	p.BoolVar(&f.dryRun, "dry-run", false, "only count")
	return cmd
}

// workersStopResult is the JSON of workers stop.
type workersStopResult struct {
	Matching  int  `json:"matching"`
	Requested int  `json:"requested"`
	Ended     int  `json:"ended"`
	DryRun    bool `json:"dry_run"`
}

func (s *session) workersStop(ctx context.Context, names []string, f workersStopFlags) error {
	if err := f.check(names); err != nil {
		return err
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	ids, err := s.selectWorkers(ctx, db, names, f)
	if err != nil {
		return err
	}
	result := workersStopResult{Matching: len(ids), DryRun: f.dryRun}
	if !f.dryRun {
		if err := s.confirm(ctx, fmt.Sprintf("Stop %s?", plural(len(ids), "worker process"))); err != nil {
			return err
		}
		filter, _ := json.Marshal(struct {
			Names     []string `json:"names,omitempty"`
			Transport string   `json:"transport,omitempty"`
			All       bool     `json:"all,omitempty"`
		}{names, f.transport, f.all})
		if result.Requested, err = db.StopWorkers(admin.WithAction(ctx, admin.Action{Actor: admin.Actor(), Filter: filter}), ids...); err != nil {
			return err
		}
		if f.wait {
			result.Ended, err = s.awaitEnd(ctx, db, ids, time.Duration(f.timeout))
		}
	}
	switch {
	case s.flags.json:
		s.stdout.json(result)
	case f.dryRun:
		s.stdout.line("%s would be stopped", plural(result.Matching, "worker process"))
	case f.wait:
		s.stdout.line("%s ended", plural(result.Ended, "worker process"))
	default:
		s.stdout.line("%s told to stop: within 5s, and what is in flight, they end", plural(result.Requested, "worker process"))
	}
	return err
}

func (f workersStopFlags) check(names []string) error {
	ways := 0
	for _, given := range []bool{len(names) > 0, f.transport != "", f.all} {
		if given {
			ways++
		}
	}
	switch {
	case ways == 0:
		return &Error{Usage, errors.New("stop which workers? nothing is selected"), "give a NAME, --transport or --all; `workers list` shows them"}
	case ways > 1:
		return &Error{Usage, errors.New("NAME, --transport and --all exclude each other"), "give one of them"}
	case f.timeout <= 0:
		return &Error{Usage, fmt.Errorf("--timeout: %v is not positive", time.Duration(f.timeout)), ""}
	}
	return nil
}

// selectWorkers returns the ids of the selected processes.
func (s *session) selectWorkers(ctx context.Context, db Database, names []string, f workersStopFlags) (ids []string, err error) {
	found, err := workersOf(ctx, db)
	if err != nil {
		return nil, err
	}
	known := []string{}
	for _, w := range found {
		known = append(known, w.Name)
		if f.all || slices.Contains(w.Transports, f.transport) || slices.Contains(names, w.Name) || slices.Contains(names, w.ID) {
			ids = append(ids, w.ID)
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) && !slices.Contains(ids, name) {
			return nil, &Error{NotFound, fmt.Errorf("no worker process %q has reported within the last minute: %w", name, waybill.ErrNotFound), suggest.Hint(name, known, "workers")}
		}
	}
	if len(ids) == 0 {
		return nil, &Error{NotFound, fmt.Errorf("no worker process is selected: %w", waybill.ErrNotFound), fmt.Sprintf("`%s workers list` lists those that report to this database", s.app.Name)}
	}
	return ids, nil
}

// awaitEvery is how often the end of workers is looked for.
const awaitEvery = 500 * time.Millisecond

// awaitEnd waits until the processes are not listed any more, and returns how many are not.
func (s *session) awaitEnd(ctx context.Context, db Database, ids []string, timeout time.Duration) (ended int, err error) {
	var gone atomic.Int64
	defer s.showProgress(progress{message: "stopping workers", verb: "ended", done: func() int { return int(gone.Load()) }})()
	deadline := time.After(timeout)
	for {
		found, err := workersOf(ctx, db)
		if err != nil && (ctx.Err() != nil || !errors.Is(err, waybill.ErrUnavailable)) {
			return ended, err
		}
		var left []string
		for _, w := range found {
			if slices.Contains(ids, w.ID) {
				left = append(left, fmt.Sprintf("%s is %s", w.Name, workerState(w)))
			}
		}
		if err == nil {
			if ended = len(ids) - len(left); len(left) == 0 {
				return ended, nil
			}
			gone.Store(int64(ended))
		}
		select {
		case <-ctx.Done():
			return ended, &Error{Partial, fmt.Errorf("%d of %s ended before the interrupt", ended, plural(len(ids), "worker process")), "they are told to stop all the same"}
		case <-deadline:
			return ended, &Error{Partial, fmt.Errorf("%d of %s ended within %v: %s", ended, plural(len(ids), "worker process"), timeout, strings.Join(left, ", ")), "their drain time may be longer than --timeout; `workers list` shows what they are handling"}
		case <-time.After(awaitEvery):
		}
	}
}
