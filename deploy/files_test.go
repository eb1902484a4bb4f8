// Package deploy_test holds the files of this directory against the commands, the
// configuration of the shop and the metrics that they name.
package deploy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waycli"
)

const shopConfig = "../examples/shop/waybill.yaml"

// slack is the least time between the end of running handlers and the kill.
const slack = 10 * time.Second

// A process is one that a file starts.
type process struct {
	where string
	args  []string          // without the name of the binary
	env   map[string]string // set by the file
	grace time.Duration     // before it is killed; zero for one that runs to its end
}

// shopWith loads the configuration of the shop with an environment.
func shopWith(t *testing.T, env map[string]string) *config.Config {
	t.Helper()
	cfg, err := config.Load(shopConfig, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		t.Fatalf("the environment %v: %v", env, err)
	}
	return cfg
}

// problems are the mistakes of p: commands, flags, transports and parts that there are not, variables
// that nothing reads, DSNs that are none, and too little time to stop.
func (p process) problems(known []string) (found []string) {
	say := func(format string, args ...any) {
		found = append(found, p.where+": "+fmt.Sprintf(format, args...))
	}
	root := waycli.New(waycli.App{Name: "shop", Bus: func(context.Context, *waycli.Service) (*waybill.Bus, error) { return nil, errors.New("not run") }})
	cmd, rest, err := root.Find(p.args)
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil {
		err = cmd.ValidateArgs(cmd.Flags().Args())
	}
	if err != nil || !cmd.Runnable() || cmd == root {
		say("%q: no such command: %v", p.args, err)
		return found
	}
	cfg, err := config.Load(shopConfig, func(name string) (string, bool) { v, ok := p.env[name]; return v, ok })
	if err != nil {
		say("environment: %v", err)
		return found
	}
	for _, arg := range cmd.Flags().Args() {
		switch _, consumed := cfg.Workers[arg]; {
		case cmd.Name() == "consume" && !consumed:
			say("no worker of transport %q", arg)
		case cmd.Name() == "run" && !slices.Contains([]string{"relay", "workers", "http"}, arg):
			say("no part %q", arg)
		}
	}
	for name := range p.env {
		if !slices.Contains(known, name) {
			say("nothing reads the variable %s", name)
		}
	}
	if p.grace != 0 && p.grace < cfg.Limits.Drain+slack {
		say("it is killed after %v, and may drain for %v", p.grace, cfg.Limits.Drain)
	}
	return found
}

// variables are the names that the shop reads: those of its configuration and its code.
func variables(t *testing.T) []string {
	t.Helper()
	names := []string{"WAYBILL_CONFIG", "ZONEINFO"}
	files, err := filepath.Glob("../examples/shop/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`(?:Getenv\("|\$\{)([A-Z_]+)`).FindAllStringSubmatch(read(t, file), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documents decodes all documents of a YAML text.
func documents(t *testing.T, text string) (all []object) {
	t.Helper()
	for _, part := range strings.Split("\n"+text, "\n---\n") { // the decoder ends at an empty one
		var doc map[string]any
		if err := yaml.Unmarshal([]byte(part), &doc); err != nil {
			t.Fatalf("%v in\n%s", err, part)
		}
		if doc != nil {
			all = append(all, object{doc})
		}
	}
	return all
}

// An object is a decoded value, whose missing parts are nil.
type object struct{ v any }

// at follows keys of mappings and numbers of lists.
func (o object) at(path ...any) object {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := o.v.(map[string]any)
			o = object{m[step]}
		case int:
			l, _ := o.v.([]any)
			if step >= len(l) {
				return object{}
			}
			o = object{l[step]}
		}
	}
	return o
}

func (o object) text() string {
	if o.v == nil {
		return ""
	}
	return fmt.Sprint(o.v)
}

func (o object) texts() (all []string) {
	l, _ := o.v.([]any)
	for _, v := range l {
		all = append(all, fmt.Sprint(v))
	}
	return all
}

func (o object) seconds(t *testing.T) time.Duration {
	t.Helper()
	text := strings.TrimSuffix(o.text(), "s")
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Errorf("%q is no number of seconds", o.text())
	}
	return time.Duration(n) * time.Second
}

// render renders the chart with its values, by the functions that it shares with Helm.
func render(t *testing.T) string {
	t.Helper()
	values := documents(t, read(t, "helm/shop/values.yaml"))[0].v
	files, err := filepath.Glob("helm/shop/templates/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("templates: %v, %v", files, err)
	}
	var out bytes.Buffer
	for _, file := range files {
		tmpl, err := template.New(file).Option("missingkey=error").Funcs(template.FuncMap{"quote": strconv.Quote}).Parse(read(t, file))
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		if err := tmpl.Execute(&out, map[string]any{"Values": values, "Release": map[string]any{"Name": "shop"}}); err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}
