package waycli

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/suggest"
)

// flags are the flags of every command.
type flags struct {
	config, database    string
	server, tokenFile   string
	json, yes, noColor  bool
	logLevel, logFormat string
	logMessages         bool
}

func (f *flags) register(root *cobra.Command) {
	p := root.PersistentFlags()
	p.StringVarP(&f.config, "config", "c", "", "configuration file (default: $WAYBILL_CONFIG, or waybill.yaml)")
	p.StringVar(&f.database, "database", "", "DSN of the database, in place of the configured one")
	p.StringVar(&f.server, "server", "", "address of a dashboard, to use in place of the database")
	p.StringVar(&f.tokenFile, "token-file", "", "file with the token for --server (default: $WAYBILL_SERVER_TOKEN)")
	p.BoolVar(&f.json, "json", false, "print results, and an error, as JSON")
	p.BoolVarP(&f.yes, "yes", "y", false, "do not ask before a change")
	p.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	p.BoolVar(&f.logMessages, "log-messages", false, "log a line for each message at info (file: log.messages)")
	p.StringVar(&f.logFormat, "log-format", "auto", "text, json, or auto: text on a terminal")
	p.BoolVar(&f.noColor, "no-color", false, "no colors; so does the environment variable NO_COLOR")
	_ = root.MarkPersistentFlagFilename("config", "yaml", "yml")
}

// A duration is a flag that knows d and w.
type duration time.Duration

// String implements pflag.Value.
func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return config.FormatDuration(time.Duration(*d))
}

// Set implements pflag.Value.
func (d *duration) Set(s string) error {
	v, err := config.ParseDuration(s)
	if err == nil && v < 0 {
		err = fmt.Errorf("%q is negative", s)
	}
	*d = duration(v)
	return err
}

// Type implements pflag.Value.
func (d *duration) Type() string { return "duration" }

// A byteSize is a flag such as 256MiB, in the units of GOMEMLIMIT.
type byteSize uint64

// String implements pflag.Value.
func (b *byteSize) String() string {
	if *b == 0 {
		return ""
	}
	return config.FormatSize(uint64(*b))
}

// Set implements pflag.Value.
func (b *byteSize) Set(s string) error {
	n, err := config.ParseSize(s)
	*b = byteSize(n)
	return err
}

// Type implements pflag.Value.
func (b *byteSize) Type() string { return "size" }

// flagError turns an error of a flag into a usage error.
func flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	hint := fmt.Sprintf("%s --help shows the flags", cmd.CommandPath())
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, "--"+f.Name) })
		hint = suggest.Hint("--"+unknown.GetSpecifiedName(), known, "flags")
		if unknown.GetSpecifiedName() == "version" {
			hint = fmt.Sprintf("`%s version` prints it", cmd.Root().Name())
		}
	}
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		err = badValue(bad)
	}
	return &Error{Usage, err, hint}
}

// badValue says what is wrong with the value of a flag, also of one that Go has parsed.
func badValue(bad *pflag.InvalidValueError) error {
	why, kind := bad.Unwrap(), bad.GetFlag().Value.Type()
	switch {
	case errors.Is(why, strconv.ErrRange):
		why = fmt.Errorf("%q is out of range", bad.GetValue())
	case errors.Is(why, strconv.ErrSyntax) && kind == "bool":
		why = fmt.Errorf("%q is neither true nor false", bad.GetValue())
	case errors.Is(why, strconv.ErrSyntax) && strings.HasPrefix(kind, "int"):
		why = fmt.Errorf("%q is not a whole number", bad.GetValue())
	case errors.Is(why, strconv.ErrSyntax):
		why = fmt.Errorf("%q is not a number", bad.GetValue())
	}
	return fmt.Errorf("--%s: %w", bad.GetFlag().Name, why)
}

// finish turns argument errors of cmd and its subcommands into usage errors, and
// leaves the printing of errors to the caller.
func finish(cmd *cobra.Command) {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return &Error{Usage, err, "usage: " + cmd.UseLine()}
			}
			return nil
		}
	}
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := cmp.Or(emptyFlag(cmd), zeroFlag(cmd)); err != nil {
				return err
			}
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		finish(sub)
	}
}

// nameExamples has the examples of cmd and the commands below it call the binary by its name.
func nameExamples(cmd *cobra.Command, name string) {
	cmd.Example = strings.ReplaceAll(cmd.Example, "waybill ", name+" ")
	for _, sub := range cmd.Commands() {
		nameExamples(sub, name)
	}
}

// emptyFlag refuses a flag that was given an empty value, as by a shell
// variable that is not set: it must not mean the default.
func emptyFlag(cmd *cobra.Command) error {
	var empty []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && f.Value.String() == "" {
			empty = append(empty, "--"+f.Name)
		}
	})
	if len(empty) > 0 {
		return &Error{Usage, fmt.Errorf("%s: the value is empty", strings.Join(empty, ", ")), "leave it out for the default"}
	}
	return nil
}

// aboveZero is the annotation of flags that want a value above zero: see positive.
const aboveZero = "above zero"

// positive has zeroFlag refuse these flags at 0, which is how they say that they were left out.
func positive(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		_ = cmd.Flags().SetAnnotation(name, aboveZero, nil)
	}
}

// zeroFlag refuses a flag of positive that was given 0: it must not mean the default.
func zeroFlag(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		_, is := f.Annotations[aboveZero]
		if value := cmp.Or(f.Value.String(), "0"); is && (value == "0" || strings.HasPrefix(value, "-")) {
			err = &Error{Usage, fmt.Errorf("--%s: %s is not above zero", f.Name, value), "leave it out for the default"}
		}
	})
	return err
}

// group makes cmd a mere parent of its commands.
func group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(commands...)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return &Error{Usage, fmt.Errorf("%s: which command?", cmd.CommandPath()), suggest.Hint("", commandNames(cmd), "commands")}
	}
	return cmd
}

func unknownCommand(cmd *cobra.Command, name string) error {
	return &Error{Usage, fmt.Errorf("unknown command %q for %s", name, cmd.CommandPath()), suggest.Hint(name, commandNames(cmd), "commands")}
}

func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}

// helpCommand is cobra's, except that an unknown command is an error.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about any command",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				if found == nil {
					found = cmd.Root()
				}
				return unknownCommand(found, rest[0])
			}
			return found.Help()
		},
	}
}
