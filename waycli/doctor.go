package waycli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
)

func (c *cli) doctorCommand() *cobra.Command {
	var limit *duration
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for settings and states that break waybill's promises; exit code 7 if there are any",
		Long: `Look for settings and states of the configuration, the databases, brokers, relays and workers that
break waybill's promises or slow it down, and that no other command refuses. Each
finding has a code, says in one sentence its problem and in another its remedy. A
healthy system prints nothing.

It changes nothing. It makes the checks of "config check" too, opens the configured
database and the stores of transports, and looks at the exchanges and queues of
brokers. Exit code 7 says that there is an error or a warning; a note is a check that
could not be made.

With --json: {"findings": [{"code", "severity", "where", "problem", "remedy"}]}, the
severity "error", "warning" or "note".`,
		Example: `  waybill doctor --json`,
		Args:    cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error {
			return within(ctx, *limit, s.doctor)
		}),
	}
	limit = timeoutFlag(cmd)
	return cmd
}

func (s *session) doctor(ctx context.Context) error {
	cfg, err := s.config()
	if err != nil {
		return err
	}
	if err := s.checkFences(cfg); err != nil {
		return err
	}
	var f consumeFlags
	f.complete(cfg.Limits)
	// The pool is that of a process with all relays and workers; it opens only what is used.
	s.need = connectionsBesides + relayConnections(leavingDatabase(cfg), relayFlags{}) + s.workerConnections(slices.Sorted(maps.Keys(cfg.Workers)), f)
	found, err := s.findings(ctx)
	if err != nil {
		return err
	}
	s.printFindings(found)
	failures := 0
	for _, f := range found {
		if f.Severity != admin.Note {
			failures++
		}
	}
	if failures == 0 {
		return nil
	}
	return &Error{CheckFailed, errors.New("check failed: " + plural(failures, "finding")), ""}
}

// findings makes the checks of the configuration, the databases, relays and workers.
func (s *session) findings(ctx context.Context) ([]admin.Finding, error) {
	return s.allOf(ctx, s.settingFindings, s.databaseFindings, s.retentionFindings, s.relayFindings, s.workerFindings, s.pauseFindings, s.brokerFindings)
}

// allOf makes checks, with the commands in their findings as those of this program.
func (s *session) allOf(ctx context.Context, checks ...func(context.Context) ([]admin.Finding, error)) ([]admin.Finding, error) {
	found := []admin.Finding{} // [] and not null in JSON
	for _, check := range checks {
		more, err := check(ctx)
		if err != nil {
			return nil, err
		}
		for _, f := range more {
			f.Problem, f.Remedy = commandsOf(s.app.Name, f.Problem), commandsOf(s.app.Name, f.Remedy)
			found = append(found, f)
		}
	}
	return found, nil
}

func (s *session) printFindings(found []admin.Finding) {
	if s.flags.json {
		s.stdout.json(map[string]any{"findings": found})
		return
	}
	for _, f := range found {
		s.stdout.line("%s", plain(fmt.Sprintf("%s %s (%s): %s", f.Severity, f.Code, f.Where, f.Problem)))
		s.stdout.line("  remedy: %s", plain(f.Remedy))
	}
}
