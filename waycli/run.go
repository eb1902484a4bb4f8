package waycli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/suggest"
)

// The parts of a service that every program has.
const (
	relayPart   = "relay"
	workersPart = "workers"

	schedulesPart = "schedules"
)

func (c *cli) runCommand() *cobra.Command {
	var f consumeFlags
	cmd := &cobra.Command{
		Use:   "run [PART...]",
		Short: "Run a service: its relay, its workers and its own parts in one process",
		Long: `Run a service in one process: the relay of its outbox, a worker for each transport
under workers in the configuration, its schedules, and the parts that the program itself
adds, such as an HTTP server. Arguments run some of them alone: relay, workers, schedules,
or the name of a part of the program; other processes may run the others.

Without a transport that leads out of the database there is no relay, and without
workers or schedules in the configuration none of these; naming one that there is not is
an error.

It runs until SIGTERM, SIGINT or "workers stop", or until a limit under limits in the
configuration is reached. Then relay and workers stop in order, and it exits with 0; a second signal
exits with 130. An error of one part stops the others.

With --json, at the end: {"reason": "stopped", "stopped by operator", "time limit", "memory limit",
"failure limit", "finished" or "failed", "parts", "published", "refused", "handled", "duplicates",
"failed"}. Handled includes duplicates, counted for each handler; failed counts attempts.`,
		Example: `  waybill run relay
  waybill run relay schedules --json`,
		Args:              cobra.ArbitraryArgs,
		RunE:              c.run(func(ctx context.Context, s *session, parts []string) error { return s.runParts(ctx, parts, f) }),
		ValidArgsFunction: c.completeFrom(func(*config.Config) []string { return []string{relayPart, workersPart, schedulesPart} }),
	}
	nameFlag(cmd, &f.name)
	f.admin.register(cmd)
	return cmd
}

// runParts runs the named parts, or all that there are.
func (s *session) runParts(ctx context.Context, named []string, f consumeFlags) error {
	cfg, err := s.config()
	if err != nil {
		return err
	}
	f.complete(cfg.Limits)
	unlisten, err := s.listenAdmin(ctx, f.admin)
	if err != nil {
		return err
	}
	defer unlisten()
	relayed, consumed := leavingDatabase(cfg), slices.Sorted(maps.Keys(cfg.Workers))
	s.need = connectionsBesides + relayConnections(relayed, relayFlags{}) + s.workerConnections(consumed, f)
	if s.app.Bus != nil {
		if _, err := s.bus(ctx); err != nil {
			return err
		}
	}
	names, err := s.partNames(named, relayed, consumed)
	if err != nil {
		return err
	}
	counts := newCounts(transportNames(cfg)...)
	limited, watch, end, err := s.watch(ctx, f, counts, slices.Contains(names, workersPart))
	if err != nil {
		return err
	}
	defer end()
	var runs []func(context.Context) error
	for _, name := range names {
		var more []func(context.Context) error
		switch name {
		case relayPart:
			more, err = s.relays(ctx, relayed, relayFlags{standby: true}, counts)
		case workersPart:
			more, err = s.workers(ctx, consumed, f, watch)
		case schedulesPart:
			more, err = s.schedules(ctx)
		default:
			more = append(more, s.service.part(name))
		}
		if err != nil {
			return err
		}
		runs = append(runs, more...)
	}
	s.warnOfIdle(ctx, named, consumed)
	s.log.LogAttrs(ctx, slog.LevelInfo, "service started", slog.String("parts", strings.Join(names, " ")))
	err = s.runShown(limited, runs, progress{
		message: "running", verb: "handled",
		done: func() int { return counts.total().handled },
		figures: func() []figure {
			t := counts.total()
			return []figure{{"failed", t.failed}, {"published", t.published}}
		},
	})
	s.runResult(names, counts.total(), s.endOf(limited, err))
	return err
}

// warnOfIdle warns of configured workers that do not run, although no part was named.
func (s *session) warnOfIdle(ctx context.Context, named, consumed []string) {
	if len(named) == 0 && len(consumed) > 0 && s.app.Bus == nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "the configured workers do not run: this binary has no handlers of its own", slog.Any("transports", consumed))
	}
}

// partNames returns the parts to run.
func (s *session) partNames(named, relayed, consumed []string) ([]string, error) {
	var all []string
	if len(relayed) > 0 {
		all = append(all, relayPart)
	}
	if len(consumed) > 0 && s.app.Bus != nil {
		all = append(all, workersPart)
	}
	if len(s.cfg.Schedules) > 0 {
		all = append(all, schedulesPart)
	}
	if s.service != nil {
		for _, p := range s.service.parts {
			all = append(all, p.name)
		}
	}
	for i, name := range named {
		switch {
		case slices.Contains(named[:i], name):
			return nil, &Error{Usage, fmt.Errorf("part %q is named twice", name), ""}
		case slices.Contains(all, name):
		case name == relayPart:
			return nil, errNoRelay()
		case name == workersPart && s.app.Bus == nil:
			return nil, s.errNoHandlers()
		case name == workersPart:
			return nil, errNoWorkers()
		case name == schedulesPart:
			return nil, errNoSchedules()
		default:
			return nil, &Error{Usage, fmt.Errorf("unknown part %q", name), suggest.Hint(name, all, "parts")}
		}
	}
	switch {
	case len(named) > 0:
		return named, nil
	case len(all) == 0 && s.app.Bus == nil && len(consumed) > 0:
		return nil, s.errNoHandlers()
	case len(all) == 0 && s.app.Bus == nil:
		return nil, errNoRelay()
	case len(all) == 0:
		return nil, errNoWorkers()
	}
	return all, nil
}

func errNoWorkers() error {
	return &Error{Usage, errors.New("the configuration names no workers"), "add the transports to consume, such as workers: { orders: {} }"}
}

func (s *session) errNoHandlers() error {
	return &Error{Usage, fmt.Errorf("%s has no handlers of its own", s.app.Name), "run a command for each message with --exec CMD of consume, or mount these commands in a binary with your handlers"}
}

func (s *session) runResult(parts []string, t totals, reason string) {
	if s.flags.json {
		s.stdout.json(struct {
			Reason    string   `json:"reason"`
			Parts     []string `json:"parts"`
			Published int      `json:"published"`
			Refused   int      `json:"refused"`
			consumed
		}{reason, parts, t.published, t.refused, consumed{Handled: t.handled, Duplicates: t.duplicates, Failed: t.failed}})
		return
	}
	s.say("%s: %s published, %s handled, %s failed", reason, plural(t.published, "message"), plural(t.handled, "message"), plural(t.failed, "attempt"))
}
