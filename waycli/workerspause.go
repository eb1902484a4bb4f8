package waycli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

func (c *cli) workersPauseCommand() *cobra.Command {
	var reason string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "pause TRANSPORT",
		Short: "Have the workers of a transport receive no messages, until a resume",
		Long: `Pause the workers of a transport in all processes that report to the configured database,
because a service that its handlers need is broken: each sees it at its next report, within
five seconds, takes no more messages, neither from the transport nor from its retry queue,
finishes those in flight and waits. No message is lost and no attempt counts. Processes that
start later are paused, too. A relay goes on to publish: the messages wait in the queue.

It asks first. The reason is for other operators: "workers list", "stats", "doctor" and the
dashboard show it, with the time and your name, until "workers resume".
A transport that is paused already stays as it is.

With --json: {"transport", "processes", "changed", "dry_run"}; processes have workers of it.`,
		Example: `  waybill workers pause orders --dry-run
  waybill workers pause orders --reason 'the payment service is down' --yes`,
		Args: cobra.ExactArgs(1),
		RunE: c.run(func(ctx context.Context, s *session, args []string) error {
			return s.workersPause(ctx, args[0], reason, dryRun)
		}),
		ValidArgsFunction: c.completeFrom(transportNames),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for other operators")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count the processes")
	return cmd
}

func (c *cli) workersResumeCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "resume TRANSPORT",
		Short: "End the pause of a transport",
		Long: `End the pause of a transport: its workers receive messages again at the next report of
their process, within five seconds, and when handlers that still run since the pause have
ended. The messages of each key come in their order. It asks first.

Exit code 3 says that the transport is not paused.

With --json: {"transport", "processes", "changed", "dry_run"}; processes have workers of it.`,
		Example: `  waybill workers resume orders --yes`,
		Args:    cobra.ExactArgs(1),
		RunE: c.run(func(ctx context.Context, s *session, args []string) error {
			return s.workersResume(ctx, args[0], dryRun)
		}),
		ValidArgsFunction: c.completeFrom(transportNames),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count the processes")
	return cmd
}

// pauseResult is the JSON of workers pause and resume.
type pauseResult struct {
	Transport string `json:"transport"`
	Processes int    `json:"processes"`
	Changed   bool   `json:"changed"`
	DryRun    bool   `json:"dry_run"`
}

// pauseOf returns the pause of a transport, or nil, and the result before any change. A
// transport that is not configured is an error; a server knows its transports itself.
func (s *session) pauseOf(ctx context.Context, transport string) (db Database, pause *admin.Pause, result pauseResult, err error) {
	if s.flags.server == "" {
		if _, err := s.transport(transport); err != nil {
			return nil, nil, result, err
		}
	}
	if db, err = s.database(ctx); err != nil {
		return nil, nil, result, err
	}
	paused, err := db.PausedTransports(ctx)
	if err != nil {
		return nil, nil, result, err
	}
	if i := slices.IndexFunc(paused, func(p admin.Pause) bool { return p.Transport == transport }); i >= 0 {
		pause = &paused[i]
	}
	workers, err := workersOf(ctx, db)
	result.Transport = transport
	for _, w := range workers {
		if slices.Contains(w.Transports, transport) {
			result.Processes++
		}
	}
	return db, pause, result, err
}

func (s *session) workersPause(ctx context.Context, transport, reason string, dryRun bool) error {
	db, pause, result, err := s.pauseOf(ctx, transport)
	if err != nil {
		return err
	}
	result.DryRun = dryRun
	processes := plural(result.Processes, "worker process")
	if !dryRun && pause == nil {
		if err := s.confirm(ctx, fmt.Sprintf("Pause %s, with %s?", transport, processes)); err != nil {
			return err
		}
		ctx := admin.WithAction(ctx, admin.Action{Actor: admin.Actor()})
		if result.Changed, err = db.PauseTransport(ctx, transport, reason); err != nil {
			return err
		}
	}
	switch {
	case s.flags.json:
		s.stdout.json(result)
	case pause != nil:
		s.stdout.line("%s already", pauseText(*pause))
	case dryRun:
		s.stdout.line("%s would be paused, with %s", transport, processes)
	case !result.Changed:
		s.stdout.line("%s was paused meanwhile", transport)
	default:
		s.stdout.line("%s is paused: within 5s its workers take no more messages, in %s", transport, processes)
	}
	return nil
}

func (s *session) workersResume(ctx context.Context, transport string, dryRun bool) error {
	db, pause, result, err := s.pauseOf(ctx, transport)
	if err != nil {
		return err
	}
	if pause == nil {
		return errNotPaused(transport)
	}
	result.DryRun = dryRun
	processes := plural(result.Processes, "worker process")
	if !dryRun {
		if err := s.confirm(ctx, fmt.Sprintf("Resume %s, with %s? It is paused since %s.", transport, processes, pauseOrigin(*pause))); err != nil {
			return err
		}
		ctx := admin.WithAction(ctx, admin.Action{Actor: admin.Actor()})
		if result.Changed, err = db.ResumeTransport(ctx, transport); err != nil {
			return err
		}
		if !result.Changed {
			return errNotPaused(transport)
		}
	}
	switch {
	case s.flags.json:
		s.stdout.json(result)
	case dryRun:
		s.stdout.line("%s would be resumed, with %s", transport, processes)
	default:
		s.stdout.line("%s is resumed: within 5s its workers take messages, in %s", transport, processes)
	}
	return nil
}

func errNotPaused(transport string) error {
	return &Error{NotFound, fmt.Errorf("transport %q is not paused: %w", transport, waybill.ErrNotFound), "`workers list` shows what is"}
}

// pauseText tells of a pause.
func pauseText(p admin.Pause) string {
	return fmt.Sprintf("%s is paused since %s", visible(p.Transport), pauseOrigin(p))
}

// pauseOrigin is the time, the actor and the reason of a pause.
func pauseOrigin(p admin.Pause) string {
	text := fmt.Sprintf("%s (%s) by %s", p.Since.Format(time.RFC3339), ago(p.Since), visible(p.Actor))
	if p.Reason != "" {
		text += ": " + visible(p.Reason)
	}
	return text
}

// pauseLines tells of the paused transports, after the list of workers.
func (s *session) pauseLines(paused []admin.Pause) {
	for _, p := range paused {
		s.stdout.line("%s", pauseText(p))
	}
}
