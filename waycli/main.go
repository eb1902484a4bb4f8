package waycli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
)

// Main runs the command line args (without the program's name) and returns the
// exit code. The end of ctx stops a relay or a worker in order: see WithSignals.
func Main(ctx context.Context, app App, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := New(app)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil {
		asJSON, _ := root.PersistentFlags().GetBool("json")
		// A wrong flag may stand before --json.
		PrintError(stderr, cmp.Or(app.Name, "waybill"), err, asJSON || slices.Contains(args, "--json"))
	}
	return ExitCode(err)
}

// New returns the commands of app under one root. Execute prints no errors: it
// returns them, for PrintError and ExitCode.
func New(app App) *cobra.Command {
	app.Name = cmp.Or(app.Name, "waybill")
	c := &cli{app: app}
	root := &cobra.Command{
		Use:   app.Name,
		Short: "Transactional messaging: relay, consume, dispatch and look after messages",
		Long: `Dispatch messages inside a database transaction, relay them to where they go in
order per key, handle each once, and see and mend all of it.

Exit codes: 0 done, 1 error, 2 usage or configuration, 3 not found, 4 refused,
5 partly done, 6 database or broker unavailable, 7 check failed, 130 interrupted.`,
		PersistentPreRunE: c.checkServer,
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
	}
	c.flags.register(root)
	root.AddCommand(
		c.schemaCommand(), c.runCommand(), c.relayCommand(), c.consumeCommand(), c.dispatchCommand(),
		c.outboxCommand(), c.failedCommand(), c.retriesCommand(), c.inboxCommand(), c.workersCommand(), c.schedulesCommand(), c.statsCommand(), c.topCommand(), c.doctorCommand(),
		c.preflightCommand(), c.healthCommand(),
		c.dashboardCommand(), c.configCommand(), c.debugCommand(), c.versionCommand(),
	)
	nameExamples(root, app.Name)
	root.AddCommand(app.Commands...)
	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			group(cmd)
		}
	}
	root.SetFlagErrorFunc(flagError)
	finish(root)
	return root
}

// cli is the state that the commands share.
type cli struct {
	app   App
	flags flags
}

// run makes a RunE of fn, which gets a session for the time it runs.
func (c *cli) run(fn func(ctx context.Context, s *session, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := c.newSession(cmd)
		if err != nil {
			return err
		}
		err = fn(cmd.Context(), s, args)
		if lost := s.stdout.failure(); err == nil && lost != nil {
			err = &Error{Err: lost, Hint: "the command has done its work, its output is incomplete"}
		} else if lost != nil {
			err = errors.Join(err, lost)
		}
		if closing := s.close(); closing != nil {
			return errors.Join(err, closing)
		}
		var own *Error // may tell how much was done before the interrupt
		if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil && !errors.As(err, &own) {
			return errInterrupted
		}
		return err
	}
}

// Execute runs the command line of the process, with its streams and WithSignals, and
// exits with the exit code. It is all of a func main.
func Execute(app App) {
	os.Exit(func() int {
		ctx, stop := WithSignals(context.Background())
		defer stop()
		return Main(ctx, app, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	}())
}
