// Command mutant plants known bugs in production code and runs the checks that must
// catch them: a check that passes with a bug proves nothing about the code without it.
// It ends with a table of what caught which, and with exit code 1 if one survives:
//
//	go run ./internal/test/testserver/run -- go run ./internal/test/mutant [-briefly] [mutant...]
//
// It runs in the module's directory. Briefly means the demo with two seeds instead
// of ten, and without the proof that all checks pass where nothing is planted.
//
// The production code has no trace of the bugs. Each is a list of edits (mutants.go), which the
// go command applies to the build by its flag -overlay. The files for that flag:
//
//	go run ./internal/test/mutant -overlays DIR [mutant...]
//	go test -overlay DIR/two-in-flight.json ./internal/keyorder
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	briefly := flag.Bool("briefly", false, "two seeds, and no proof that the checks pass without a mutant")
	overlays := flag.String("overlays", "", "write the overlays of the mutants to this directory, for go test -overlay, and end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	chosen, err := find(flag.Args())
	switch {
	case err != nil:
	case *overlays != "":
		for _, m := range chosen {
			_, wrong := m.overlay(".", *overlays)
			err = errors.Join(err, wrong)
		}
	default:
		err = hunt(ctx, *briefly, chosen, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// atOnce is how many tests run side by side: they wait for servers most of the
// time. Demos have a time limit, and run alone.
const atOnce = 4

// hunt runs the checks of mutants.
func hunt(ctx context.Context, briefly bool, mutants []mutant, out io.Writer) error {
	h := hunter{seeds: 10, out: out}
	chosen := slices.DeleteFunc(slices.Clone(checks), func(c check) bool {
		return !slices.ContainsFunc(mutants, func(m mutant) bool { return m.name == c.mutant })
	})
	if briefly {
		h.seeds = 2
	} else {
		chosen = append(healthy(chosen), chosen...)
		mutants = append([]mutant{{}}, mutants...)
	}
	var err error
	if h.dir, err = os.MkdirTemp("", "waybill-mutants-"); err != nil {
		return err
	}
	defer os.RemoveAll(h.dir)
	failures := make([]error, len(chosen))
	slots := make(chan struct{}, atOnce)
	var tests sync.WaitGroup
	for _, m := range mutants { // tests run while the next mutant is built
		if err = h.build(ctx, m, chosen); err != nil {
			break
		}
		for i, c := range chosen {
			if c.mutant == m.name && c.in != demo {
				tests.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					failures[i] = h.try(ctx, c)
				})
			}
		}
	}
	tests.Wait()
	if err != nil {
		return err
	}
	for i, c := range chosen {
		if c.in == demo {
			failures[i] = h.try(ctx, c)
		}
	}
	return h.report(chosen, failures)
}

// healthy returns the same without a mutant, each once: they must pass, or a
// failure shows nothing.
func healthy(checks []check) (all []check) {
	for _, c := range checks {
		c.mutant, c.luck, c.says = none, false, nil
		if !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// A hunter runs the binaries of the checks, which it builds in dir.
type hunter struct {
	dir   string
	seeds int

	mu  sync.Mutex
	out io.Writer
}

// build builds the binaries of m's checks, in a directory of its name.
func (h *hunter) build(ctx context.Context, m mutant, chosen []check) error {
	overlay, err := m.overlay(".", h.dir)
	if err != nil {
		return err
	}
	packages := map[string][]string{} // by verb
	for _, c := range chosen {
		verb := "test"
		if c.in == demo {
			verb = "build"
		}
		if c.mutant == m.name && !slices.Contains(packages[verb], c.in) {
			packages[verb] = append(packages[verb], c.in)
		}
	}
	for verb, of := range packages {
		args := []string{verb, "-overlay", overlay, "-ldflags=-s -w", "-o", filepath.Join(h.dir, m.name, "bin") + "/"}
		if verb == "test" {
			args = append(args, "-c")
		}
		if text, err := exec.CommandContext(ctx, "go", append(args, of...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: go %s: %w\n%s", m.name, verb, err, text)
		}
	}
	return nil
}

// try returns why c has not caught its mutant.
func (h *hunter) try(ctx context.Context, c check) error {
	start := time.Now()
	err := h.caught(ctx, c)
	h.mu.Lock()
	defer h.mu.Unlock()
	what := "caught"
	switch {
	case err != nil:
		what = "FAILED: " + err.Error()
	case c.mutant == none:
		what = "passes"
	}
	fmt.Fprintf(h.out, "mutants: %-25s %s (%s, %.0f s): %s\n", cmp.Or(c.mutant, "nothing planted"), c.name(), c.on, time.Since(start).Seconds(), what)
	return err
}

// none is the mutant of a check that is to pass.
const none = ""

// caught runs c with each seed, or until it is lucky.
func (h *hunter) caught(ctx context.Context, c check) error {
	tries := 1
	if c.in == demo {
		tries = h.seeds
	}
	if c.luck {
		tries = 10
	}
	for seed := 1; seed <= tries; seed++ {
		text, err := h.run(ctx, c, seed, c.mutant)
		switch {
		case c.mutant == none && err != nil:
			return fmt.Errorf("nothing is planted, and it fails, seed %d: %w\n%s", seed, err, text)
		case c.mutant == none || err == nil && c.luck && seed < tries:
		case err == nil:
			return fmt.Errorf("it passes, seed %d: the check is too weak, mend the check\n%s", seed, text)
		case !c.says.Match(text):
			return fmt.Errorf("seed %d: %w, and the output does not say %q\n%s", seed, err, c.says, text)
		case c.luck:
			return nil
		}
	}
	return nil
}

// run runs a check in a process, in a directory that is empty.
func (h *hunter) run(ctx context.Context, c check, seed int, planted string) ([]byte, error) {
	dir, err := os.MkdirTemp(h.dir, "")
	if err != nil {
		return nil, err
	}
	binary, args := path.Base(c.in)+".test", []string{"-test.timeout=5m", "-test.run=" + c.test}
	if c.in == demo {
		servers, err := c.on.servers()
		if err != nil {
			return nil, err
		}
		binary, args = path.Base(c.in), append([]string{"demo", "--orders", "300", "--time-limit", "30s", "--json", "--seed", fmt.Sprint(seed)}, servers...)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(h.dir, planted, "bin", binary), args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "WAYBILL_MUTANT="+planted)
	return cmd.CombinedOutput()
}

// report prints the table, and returns an error if a mutant survives a check.
func (h *hunter) report(chosen []check, failures []error) error {
	table := tabwriter.NewWriter(h.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\nmutant\tcaught by\tof\ton\n")
	failed := 0
	for i, c := range chosen {
		by := c.name()
		if failures[i] != nil {
			by = "NOT by " + by
			failed++
		}
		if c.mutant != none {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", c.mutant, by, strings.TrimPrefix(c.in, "./"), c.on)
		}
	}
	if err := table.Flush(); err != nil || failed == 0 {
		return err
	}
	return fmt.Errorf("%d of %d checks failed, see above", failed, len(chosen))
}
