package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/waybill-go/waybill/waycli"
)

var (
	// A command in a page is the line of a block, or stands in backquotes.
	commandLine = regexp.MustCompile("(?m)(?:^ *(?:\\./|go run \\./cmd/)?|`(?:go run \\./cmd/)?)waybill ([a-z][^`\n]*)")
	word        = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)
)

// Each command line in README and docs has a known command, flags and arguments.
func TestCommandsOfThePagesParse(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	scripts := readAll(t, "testdata/script/*.txtar")
	count := 0
	for _, file := range append(files, "../../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range commandLine.FindAllStringSubmatch(string(text), -1) {
			count++
			line, _, _ := strings.Cut(m[1], " #")
			line, _, _ = strings.Cut(line, " && ")
			var words []string
			for _, w := range word.FindAllString(line, -1) {
				words = append(words, strings.Trim(w, `'"`))
			}
			cmd, err := parse(words)
			if err != nil {
				t.Errorf("%s: waybill %s: %v", file, line, err)
			} else if !strings.Contains(scripts, cmd.CommandPath()+" ") && !strings.Contains(scripts, cmd.CommandPath()+"\n") {
				t.Errorf("%s: no script runs %s", file, cmd.CommandPath())
			}
		}
	}
	if count < 40 {
		t.Errorf("found %d command lines: is the pattern still right?", count)
	}
}

// Each command has examples in its help, with flags and arguments that it takes.
func TestEveryCommandHasExamplesThatParse(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			return
		}
		own := cmd.HasSubCommands()
		for line := range strings.Lines(cmd.Example) {
			var words []string
			for _, w := range word.FindAllString(shellTail.ReplaceAllString(line, ""), -1) {
				words = append(words, strings.Trim(w, `'"`))
			}
			if len(words) == 0 || words[0] != "waybill" {
				t.Errorf("%s: an example is not one of waybill: %s", path, line)
				continue
			}
			got, err := parse(words[1:])
			if err == nil {
				err = got.ValidateArgs(got.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: an example is wrong: %s%v", path, line, err)
				continue
			}
			own = own || got.CommandPath() == path
		}
		if !own {
			t.Errorf("%s: its help has no example of it", path)
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(waycli.New(app()))
}

// shellTail is the part of a command line that the shell reads.
var shellTail = regexp.MustCompile(` (?:[<>|#]|&&).*`)

// A duration may have days wherever a flag takes one.
func TestDurationFlagsTakeDays(t *testing.T) {
	count := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "duration" {
				return
			}
			count++
			if err := f.Value.Set("7d"); err != nil || f.Value.String() != "7d" {
				t.Errorf("%s --%s 7d: %q, %v", cmd.CommandPath(), f.Name, f.Value, err)
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(waycli.New(app()))
	if count < 9 {
		t.Errorf("found %d flags that take a duration: is the walk still right?", count)
	}
}

// parse finds the command of words and checks its flags and arguments.
func parse(words []string) (*cobra.Command, error) {
	cmd, rest, err := waycli.New(app()).Find(words)
	if err != nil {
		return nil, err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return nil, err
	}
	if cmd.HasSubCommands() && cmd.Flags().NArg() > 0 {
		return nil, &waycli.Error{Err: os.ErrInvalid, Hint: cmd.Flags().Arg(0)}
	}
	return cmd, nil
}

func readAll(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
