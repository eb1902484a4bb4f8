package waycli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/worker"
)

// consumeFlags are the flags of consume.
type consumeFlags struct {
	exec, handler, name          string
	concurrency, prefetch, limit int
	failures                     int
	strict                       bool
	shared                       int // handlers of all transports together; zero means that each has its own
	memory                       byteSize
	idle, drain, time            duration
	admin                        adminFlags
}

const consumeHelp = `Take messages from transports and handle them: with the handlers of this binary,
or with --exec by running a command for each message. Without TRANSPORT it takes those
under workers in the configuration, whose settings and limits the flags replace.

The command is run by the shell. It gets the message's body on its standard
input, byte for byte, and these environment variables:

  WAYBILL_MESSAGE_ID, WAYBILL_MESSAGE_NAME, WAYBILL_PARTITION_KEY,
  WAYBILL_TRANSPORT, WAYBILL_ATTEMPT (1 is the first),
  WAYBILL_HEADER_*   each header, in upper case with _ for other characters

  exit 0             handled
  exit 65            unrecoverable: as a message without retries left
  any other          failed (75 says: for now): tried again, as the transport's
                     retry settings say

A failed message waits for its retry in the store of the transport (store, or the
configured database), with the later messages of its key. Without retries left
one with a key is parked or skipped, as on_exhausted of the transport says, and one
without a key is skipped: "retries list" shows what waits and what is parked,
"failed list" what was skipped, the dead letters.

With limits.concurrency the transports share so many handlers, by priority and weight of
workers in the configuration. With --strict they share limits.concurrency, or else the most
that one of them may have, and a free one takes a message of the first transport named that
has one, however long the others wait.

Delivery is at least once. After exit 0 the message is remembered in the inbox of
the configured database and not run again, but a crash between the two, or a copy that
another process handles meanwhile, runs it again: the command must bear that. Its stderr
is passed on line by line, and the last line is part of the error of a failure; its
stdout is passed on as it is (with --json, to stderr).

Messages whose name is not under messages in the configuration are unrecoverable.

It runs until SIGTERM, SIGINT or "workers stop", or until --time-limit, --memory-limit or
--failure-limit is reached, finishes messages in flight within --drain-timeout
and exits with 0; then commands that still run are killed, and their messages
come again. A second signal exits with 130. The commands of a process that is killed (kill -9)
are killed, too, with their child processes; not so on Windows. The memory limit is that of
this process, without its commands, and nine tenths of it are its GOMEMLIMIT, unless that is set.

With --json, at the end: {"reason": "stopped", "stopped by operator", "finished",
"time limit", "memory limit", "failure limit" or "failed", "handled", "duplicates", "failed",
"transports": [{"transport", "handled", "duplicates", "failed"}]}. Handled includes
duplicates, which are counted for each handler; failed counts attempts.`

func (c *cli) consumeCommand() *cobra.Command {
	var f consumeFlags
	cmd := &cobra.Command{
		Use:   "consume [TRANSPORT...]",
		Short: "Take messages from transports and handle them",
		Long:  consumeHelp,
		Example: `  waybill consume orders --exec 'php bin/handle.php' --concurrency 4
  waybill consume orders mail --exec ./handle --idle-exit 1s
  waybill consume urgent normal --exec ./handle --strict --concurrency 4
  waybill consume orders --exec ./handle --time-limit 1h --memory-limit 256MiB`,
		Args: cobra.ArbitraryArgs,
		RunE: c.run(func(ctx context.Context, s *session, transports []string) error {
			return s.consume(ctx, transports, f)
		}),
		ValidArgsFunction: c.completeFrom(transportNames),
	}
	p := cmd.Flags()
	p.StringVar(&f.exec, "exec", "", "command to run for each message")
	p.StringVar(&f.handler, "handler", "", "name under which the inbox remembers --exec (default exec:TRANSPORT)")
	nameFlag(cmd, &f.name)
	p.IntVar(&f.concurrency, "concurrency", 0, "messages handled at once; those of one key one after another (default: the configured number, or 10)")
	p.IntVar(&f.prefetch, "prefetch", 0, "messages in flight (default: the configured number, or 4 for each that is handled)")
	p.BoolVar(&f.strict, "strict", false, "share handlers: messages of the first transport named before all others")
	p.IntVar(&f.limit, "limit", 0, "exit after so many messages of one transport (default: no limit)")
	p.Var(&f.time, "time-limit", "exit after so long, up to a tenth earlier at random (default: the configured limit, or none)")
	p.Var(&f.memory, "memory-limit", "exit when this process uses so much, such as 256MiB (default: the configured limit, or none)")
	p.IntVar(&f.failures, "failure-limit", 0, "exit after so many failed attempts (default: the configured limit, or none)")
	p.Var(&f.idle, "idle-exit", "exit when nothing arrived for so long (default: never)")
	p.Var(&f.drain, "drain-timeout", "how long handlers may go on after a signal (default: the configured time, or 25s)")
	positive(cmd, "concurrency", "prefetch", "time-limit", "memory-limit", "failure-limit", "drain-timeout")
	f.admin.register(cmd)
	return cmd
}

// nameFlag is the name of a process with workers.
func nameFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "name", "", "name of this process in \"workers list\" and for \"workers stop\" (default HOST/PID)")
}

// completeFrom completes arguments with names of the configuration.
func (c *cli) completeFrom(names func(*config.Config) []string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		cfg, err := config.Load(c.flags.config, nil)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(cfg), cobra.ShellCompDirectiveNoFileComp
	}
}

// consume runs a worker for each transport.
func (s *session) consume(ctx context.Context, transports []string, f consumeFlags) error {
	cfg, err := s.config()
	if err != nil {
		return err
	}
	if f.strict && len(transports) < 2 {
		return &Error{Usage, errors.New("--strict orders the transports that are named"), "name two or more, the first before all others"}
	}
	if len(transports) == 0 {
		transports = slices.Sorted(maps.Keys(cfg.Workers))
	}
	if err := s.checkConsume(cfg, transports, f); err != nil {
		return err
	}
	f.complete(cfg.Limits)
	if f.strict && f.shared == 0 {
		for _, name := range transports {
			f.shared = max(f.shared, settingsOf(cfg, name, f).Concurrency)
		}
	}
	unlisten, err := s.listenAdmin(ctx, f.admin)
	if err != nil {
		return err
	}
	defer unlisten()
	s.need = connectionsBesides + s.workerConnections(transports, f)
	counts := newCounts(transports...)
	if f.exec == "" {
		if _, err := s.bus(ctx); err != nil {
			return err
		}
	}
	limited, watch, end, err := s.watch(ctx, f, counts, true)
	if err != nil {
		return err
	}
	defer end()
	runs, err := s.workers(ctx, transports, f, watch)
	if err != nil {
		return err
	}
	s.log.LogAttrs(ctx, slog.LevelInfo, "consume started", slog.String("transports", strings.Join(transports, " ")))
	err = s.runShown(limited, runs, progress{
		message: "consuming", verb: "handled",
		done:    func() int { return counts.total().handled },
		figures: func() []figure { return []figure{{"failed", counts.total().failed}} },
	})
	s.consumeResult(transports, counts, s.endOf(limited, err))
	return err
}

// endOf returns why a consume has ended, and logs a limit.
func (s *session) endOf(ctx context.Context, err error) string {
	var reached *worker.LimitError
	switch {
	case err != nil:
		return "failed"
	case errors.As(context.Cause(ctx), &reached):
		s.log.LogAttrs(ctx, slog.LevelInfo, "limit reached", slog.String("limit", reached.Limit), slog.String("detail", reached.Detail))
		return reached.Limit + " limit"
	case errors.Is(context.Cause(ctx), worker.ErrStopRequested):
		s.log.LogAttrs(ctx, slog.LevelInfo, worker.ErrStopRequested.Error())
		return worker.ErrStopRequested.Error()
	case ctx.Err() != nil:
		return "stopped"
	}
	return "finished"
}

// softMemoryLimit has the garbage collector work harder before a process ends at its limit.
func softMemoryLimit(limit byteSize) {
	if limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(limit / 10 * 9))
	}
}

// usefulConnections bounds the connections of --exec: the server's are few.
const usefulConnections = 32

func (s *session) checkConsume(cfg *config.Config, transports []string, f consumeFlags) error {
	for i, name := range transports {
		if slices.Contains(transports[:i], name) {
			return &Error{Usage, fmt.Errorf("transport %q is named twice", name), "--concurrency handles more at once"}
		}
	}
	switch {
	case len(transports) == 0:
		return errNoWorkers()
	case f.limit < 0:
		return &Error{Usage, fmt.Errorf("--limit: %d is negative", f.limit), "0 means no limit"}
	case f.limit > 0 && len(transports) > 1:
		return &Error{Usage, errors.New("--limit counts the messages of one transport"), "consume each transport by a process of its own"}
	case f.exec == "" && f.handler != "":
		return &Error{Usage, errors.New("--handler names --exec, which is missing"), ""}
	case f.exec == "" && s.app.Bus == nil:
		return s.errNoHandlers()
	case f.exec != "" && len(cfg.Messages) == 0:
		return &Error{Usage, errors.New("the configuration names no messages, so each would fail"), "add their names, such as messages: { order.placed: {} }"}
	}
	return nil
}

func (s *session) consumeBus(ctx context.Context, transport string, f consumeFlags) (*waybill.Bus, error) {
	if f.exec == "" {
		return s.bus(ctx)
	}
	db, err := s.database(ctx)
	if err != nil {
		return nil, err
	}
	if s.reaper == nil {
		if s.reaper, err = startReaper(); err != nil {
			return nil, err
		}
		s.closers = append(s.closers, s.reaper)
	}
	return newExecBus(&execHandler{
		command: f.exec, handler: f.handler, transport: transport,
		log: db, retention: s.cfg.Inbox.Retention,
		stdout: s.commandOutput(), stderr: s.stderr, last: lastActsOf(ctx), reaper: s.reaper,
	}, messageNames(s.cfg))
}

type consumed struct {
	Transport  string `json:"transport,omitempty"`
	Handled    int    `json:"handled"`
	Duplicates int    `json:"duplicates"`
	Failed     int    `json:"failed"`
}

func (s *session) consumeResult(transports []string, counts *counts, reason string) {
	result := struct {
		Reason string `json:"reason"`
		consumed
		Transports []consumed `json:"transports"`
	}{Reason: reason}
	for _, name := range transports {
		n := counts.of(name)
		one := consumed{name, int(n.handled.Load()), int(n.duplicates.Load()), int(n.failed.Load())}
		result.Transports = append(result.Transports, one)
		result.Handled += one.Handled
		result.Duplicates += one.Duplicates
		result.Failed += one.Failed
	}
	if s.flags.json {
		s.stdout.json(result)
		return
	}
	s.say("%s: %s handled, %s failed", result.Reason, plural(result.Handled, "message"), plural(result.Failed, "attempt"))
}
