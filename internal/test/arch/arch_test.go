package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const (
	module   = "github.com/waybill-go/waybill"
	root     = "../../.." // the module's directory, seen from this package
	standard = "std"      // the answer of moduleOf for the standard library
)

// A rule lists the imports, outside of tests and besides the standard library,
// that packages matching a pattern may have. Patterns are relative to the module:
// "." is the root package, "cmd/..." is cmd and all below it.
type rule struct {
	packages string
	reaches  []string // packages of this module, directly or through others
	modules  []string // other modules, imported directly
	client   string   // the one client library a leaf is there for
	testing  bool     // may reach the package testing
}

var (
	core     = []string{".", "middleware", "outbox", "inbox", "worker", "admin", "history", "memory", "internal/..."}
	ids      = []string{"github.com/gofrs/uuid/v5"}
	commands = []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/lmittmann/tint", "github.com/mattn/go-isatty", "golang.org/x/term"}
)

// rules is the architecture, one line a package; the first line that matches
// counts. Indirect imports are checked too, so that no detour through internal or
// through a friend leads from the core to a leaf.
var rules = []rule{
	// The core. The loops (outbox, worker, inbox) never meet.
	{packages: ".", reaches: []string{"internal/..."}, modules: ids},
	{packages: "middleware", reaches: core, modules: with(ids, "golang.org/x/time")},
	{packages: "outbox", reaches: without(core, "inbox", "worker"), modules: ids},
	{packages: "inbox", reaches: without(core, "outbox", "worker"), modules: ids},
	{packages: "worker", reaches: without(core, "outbox", "inbox"), modules: ids},
	{packages: "admin", reaches: core, modules: ids},
	{packages: "history", reaches: []string{".", "worker", "internal/..."}, modules: ids},
	{packages: "memory", reaches: core, modules: ids},
	// Beside the core: a parser of cron expressions, which leaves do not compile.
	{packages: "schedule", reaches: core, modules: with(ids, "github.com/robfig/cron/v3")},

	// The leaves: waybill's contracts and one client library each.
	{packages: "waysqlite", reaches: core, modules: ids, client: "modernc.org/sqlite"},
	{packages: "waypg", reaches: core, modules: ids, client: "github.com/jackc/pgx/v5"},
	{packages: "waymysql", reaches: core, modules: ids, client: "github.com/go-sql-driver/mysql"},
	{packages: "wayamqp", reaches: core, modules: ids, client: "github.com/rabbitmq/amqp091-go"},
	{packages: "wayredis", reaches: core, modules: ids, client: "github.com/redis/go-redis/v9"},
	{packages: "waynats", reaches: core, modules: ids, client: "github.com/nats-io/nats.go"},
	{packages: "waykafka", reaches: core, modules: ids, client: "github.com/twmb/franz-go"},

	// Around them. Openers are passed to config and waycli, so that a
	// program with one database compiles no client of another.
	{packages: "config", reaches: with(core, "schedule"), modules: with(ids, "github.com/goccy/go-yaml")},
	{packages: "dashboard", reaches: core, modules: with(ids, "golang.org/x/crypto")},
	{packages: "wayprom", reaches: core, modules: ids, client: "github.com/prometheus/client_golang"},
	{packages: "wayotel", reaches: core, modules: with(ids, "go.opentelemetry.io/otel"), client: "go.opentelemetry.io/otel/trace"},
	{packages: "waycli", reaches: with(core, "schedule", "config", "dashboard", "wayprom"), modules: with(ids, with(commands, "github.com/prometheus/client_golang")...)},
	{packages: "waycli/sqlite", reaches: with(core, "schedule", "config", "dashboard", "wayprom", "waycli", "waysqlite"), modules: with(ids, commands...)},
	{packages: "waycli/postgres", reaches: with(core, "schedule", "config", "dashboard", "wayprom", "waycli", "waypg"), modules: with(ids, with(commands, "github.com/jackc/pgx/v5")...)},
	{packages: "waycli/mysql", reaches: with(core, "schedule", "config", "dashboard", "wayprom", "waycli", "waymysql"), modules: with(ids, with(commands, "github.com/go-sql-driver/mysql")...)},
	{packages: "waycli/rabbitmq", reaches: with(core, "schedule", "config", "dashboard", "wayprom", "waycli", "wayamqp"), modules: with(ids, commands...)},
	{packages: "waycli/otlp", reaches: with(core, "wayotel"), modules: with(ids, "go.opentelemetry.io/otel", "go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp")},
	{packages: "cmd/waybill/internal/bench/files", reaches: with(core, "waysqlite"), modules: ids},
	{packages: "cmd/waybill/internal/bench", reaches: with(core, "waypg", "waymysql", "wayamqp", "wayprom", "wayotel", "dashboard"), modules: with(ids, "github.com/jackc/pgx/v5", "github.com/rabbitmq/amqp091-go", "github.com/prometheus/client_golang", "go.opentelemetry.io/otel/sdk")},
	{packages: "cmd/waybill/internal/demo", reaches: with(core, "schedule", "config", "waysqlite", "waypg", "waymysql", "wayamqp"), modules: with(ids, "github.com/jackc/pgx/v5", "github.com/rabbitmq/amqp091-go")},
	{packages: "examples/shop", reaches: []string{"..."}, modules: []string{"github.com/jackc/pgx/v5"}},
	{packages: "cmd/...", reaches: []string{"..."}, modules: with(ids, commands...)},

	// For tests.
	{packages: "waytest", reaches: with(core, "schedule"), modules: with(ids, "github.com/google/go-cmp", "pgregory.net/rapid"), testing: true},
	{packages: "internal/test/testserver/port"},
	{packages: "internal/test/testserver", reaches: []string{"internal/test/testserver/port"}, testing: true},
	{packages: "internal/test/testserver/run", reaches: []string{"internal/test/testserver", "internal/test/testserver/port"}, testing: true},
	{packages: "internal/test/faultproxy", reaches: []string{"internal/test/testserver/port"}},
	{packages: "internal/test/findings", reaches: []string{".", "admin", "outbox", "worker", "internal/..."}, modules: ids, testing: true},
	{packages: "internal/test/verdict"},

	// For the inside.
	{packages: "deploy"},
	{packages: "docs"},
	{packages: "internal/test/arch"},
	{packages: "internal/keyorder", reaches: []string{".", "internal/suggest"}, modules: ids},
	{packages: "internal/crash"},
	{packages: "internal/test/crashpoint", reaches: []string{"internal/crash"}},
	{packages: "internal/test/droptables"},
	{packages: "internal/headers", reaches: []string{".", "internal/..."}},
	{packages: "internal/readpos", reaches: []string{".", "outbox", "internal/..."}, modules: ids},
	{packages: "internal/test/mutant"},
	{packages: "internal/suggest"},
	{packages: "internal/outage"},
	{packages: "internal/test/chaos"},
	{packages: "internal/test/sim", reaches: core, modules: ids},
	{packages: "internal/sqlcore", reaches: []string{".", "admin", "outbox", "worker", "internal/..."}, modules: ids},
	{packages: "internal/sqlfile"},
	{packages: "internal/test/e2e"},
}

func TestPackagesImportOnlyWhatTheirRuleAllows(t *testing.T) {
	sourceFiles(t) // so that go test's cache sees a change anywhere in the tree
	for _, tags := range []string{"", "chaos"} {
		for _, v := range violations(listPackages(t, tags), rules) {
			t.Errorf("(tags %q) %s", tags, v)
		}
	}
}

// A pkg is one package of any module in the output of go list.
type pkg struct {
	ImportPath string
	Standard   bool
	Module     *struct{ Path string }
	Imports    []string
}

// A graph holds packages by import path, with everything they import.
type graph map[string]pkg

func listPackages(t *testing.T, tags string) graph {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,Module,Imports", "-tags", tags, "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &stderr)
	}
	g := graph{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return g
		}
		if err != nil {
			t.Fatalf("output of %s: %v", cmd, err)
		}
		g[p.ImportPath] = p
	}
}

// violations holds the packages of the module against the rules.
func violations(g graph, rules []rule) []string {
	var found []string
	for _, p := range g.ofModule() {
		name := relative(p.ImportPath)
		i := slices.IndexFunc(rules, func(r rule) bool { return matches(r.packages, name) })
		if i < 0 {
			found = append(found, fmt.Sprintf("%s: no rule for this package; say in the table of internal/test/arch where it belongs", name))
			continue
		}
		r := rules[i]
		if r.client != "" && !slices.ContainsFunc(p.Imports, func(imp string) bool { return g.moduleOf(imp) == r.client }) {
			found = append(found, fmt.Sprintf("%s: does not import %s, the library it is there for", name, r.client))
		}
		for _, imp := range p.Imports {
			if !slices.Contains(with(r.modules, standard, module, r.client), g.moduleOf(imp)) {
				found = append(found, fmt.Sprintf("%s: may not import %s", name, imp))
			}
		}
		for _, chain := range g.reachedFrom(p) {
			to := chain[len(chain)-1]
			switch {
			case to == "testing" && r.testing:
			case to == "testing", g.moduleOf(to) == module && !matchesAny(r.reaches, relative(to)), forTests(relative(to)) && !forTests(name) && !matches("cmd/...", name):
				found = append(found, fmt.Sprintf("%s: may not reach %s, as by %s", name, relative(to), strings.Join(chain, " -> ")))
			}
		}
	}
	return found
}

// forTests reports whether a package is not part of the library. The demo and the
// benchmarks of cmd use such packages, too.
func forTests(name string) bool { return matches("internal/test/...", name) }

func (g graph) ofModule() []pkg {
	var own []pkg
	for _, p := range g {
		if p.Module != nil && p.Module.Path == module {
			own = append(own, p)
		}
	}
	slices.SortFunc(own, func(a, b pkg) int { return strings.Compare(a.ImportPath, b.ImportPath) })
	return own
}

func (g graph) moduleOf(importPath string) string {
	switch p := g[importPath]; {
	case p.Standard:
		return standard
	case p.Module != nil:
		return p.Module.Path
	}
	return "no module, like that of " + importPath // "C", for instance
}

// reachedFrom returns for every package that p imports, directly or through
// others, a shortest chain of imports that leads there.
func (g graph) reachedFrom(p pkg) [][]string {
	var chains [][]string
	seen := map[string]bool{p.ImportPath: true}
	for queue := [][]string{{p.ImportPath}}; len(queue) > 0; queue = queue[1:] {
		chain := queue[0]
		for _, imp := range g[chain[len(chain)-1]].Imports {
			if seen[imp] {
				continue
			}
			seen[imp] = true
			next := append(slices.Clone(chain), imp)
			chains = append(chains, next)
			queue = append(queue, next)
		}
	}
	return chains
}

// relative turns an import path of the module into the form of the patterns.
func relative(importPath string) string {
	rel, ok := strings.CutPrefix(importPath, module)
	if !ok {
		return importPath
	}
	return path.Clean("." + rel)
}

func matches(pattern, name string) bool {
	dir, below := strings.CutSuffix(pattern, "...")
	if !below {
		return name == pattern
	}
	return strings.HasPrefix(name+"/", dir)
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}

func with(patterns []string, more ...string) []string {
	return slices.Concat(patterns, more)
}

func without(patterns []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(patterns), func(p string) bool { return slices.Contains(names, p) })
}
