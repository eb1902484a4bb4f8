package arch

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fabricate makes a graph from lines "importer: imports ...". A package below
// the module is written with a leading dot, one of another module as
// module!package; the rest is the standard library.
func fabricate(lines ...string) graph {
	g := graph{}
	add := func(word string) string {
		p := pkg{ImportPath: word, Standard: true}
		if rel, ok := strings.CutPrefix(word, "."); ok {
			p = pkg{ImportPath: module + rel, Module: &struct{ Path string }{module}}
		} else if mod, rel, ok := strings.Cut(word, "!"); ok {
			p = pkg{ImportPath: mod + rel, Module: &struct{ Path string }{mod}}
		}
		if _, ok := g[p.ImportPath]; !ok {
			g[p.ImportPath] = p
		}
		return p.ImportPath
	}
	for _, line := range lines {
		importer, imports, _ := strings.Cut(line, ":")
		from := add(importer)
		for _, word := range strings.Fields(imports) {
			to := add(word)
			p := g[from]
			p.Imports = append(p.Imports, to)
			g[from] = p
		}
	}
	return g
}

func TestRulesAllowTheArchitectureOfTheDesign(t *testing.T) {
	g := fabricate(
		".: context github.com/gofrs/uuid/v5!",
		"./middleware: . golang.org/x/time!/rate",
		"./outbox: . github.com/gofrs/uuid/v5!",
		"./inbox: .",
		"./worker: .",
		"./memory: . ./outbox ./inbox ./worker",
		"./waysqlite: ./outbox ./inbox ./internal/sqlfile modernc.org/sqlite!",
		"./config: . github.com/goccy/go-yaml!",
		"./waycli: ./config github.com/spf13/cobra!",
		"./cmd/waybill/internal/demo: ./waysqlite ./worker",
		"./cmd/waybill: ./waycli ./cmd/waybill/internal/demo github.com/spf13/cobra!",
		"./waytest: ./outbox testing github.com/google/go-cmp!/cmp",
	)
	if got := violations(g, rules); got != nil {
		t.Errorf("violations:\n%s", strings.Join(got, "\n"))
	}
}

func TestRulesFindOffenders(t *testing.T) {
	tests := []struct {
		name  string
		graph graph
		want  []string // beginnings
	}{
		{"core imports a leaf", fabricate("./worker: ./waysqlite", "./waysqlite: modernc.org/sqlite!"), []string{"worker: may not reach waysqlite"}},
		{"core reaches a leaf by a detour", fabricate("./worker: ./internal/headers", "./internal/headers: ./waysqlite", "./waysqlite: modernc.org/sqlite!"), []string{"internal/headers: may not reach waysqlite, as by " + module + "/internal/headers -> " + module + "/waysqlite", "worker: may not reach waysqlite, as by " + module + "/worker -> " + module + "/internal/headers -> " + module + "/waysqlite"}},
		{"core imports a part of the tests", fabricate("./worker: ./internal/test/faultproxy"), []string{"worker: may not reach internal/test/faultproxy"}},
		{"core imports config", fabricate("./outbox: ./config"), []string{"outbox: may not reach config"}},
		{"root imports a loop", fabricate(".: ./outbox"), []string{".: may not reach outbox"}},
		{"loops meet", fabricate("./outbox: ./worker", "./worker: ./inbox"), []string{"outbox: may not reach worker", "outbox: may not reach inbox", "worker: may not reach inbox"}},
		{"core imports a library", fabricate("./outbox: golang.org/x/time!/rate"), []string{"outbox: may not import golang.org/x/time/rate"}},
		{"leaf imports a leaf", fabricate("./waypg: ./waysqlite github.com/jackc/pgx/v5!", "./waysqlite: modernc.org/sqlite!/lib"), []string{"waypg: may not reach waysqlite"}},
		{"leaf imports two clients", fabricate("./waysqlite: modernc.org/sqlite! github.com/jackc/pgx/v5!/pgconn"), []string{"waysqlite: may not import github.com/jackc/pgx/v5/pgconn"}},
		{"leaf without its client", fabricate("./waysqlite: database/sql"), []string{"waysqlite: does not import modernc.org/sqlite"}},
		{"cgo", fabricate("./outbox: C!"), []string{"outbox: may not import C"}},
		{"cobra outside of the command line", fabricate("./cmd/waybill/internal/demo: github.com/spf13/cobra!"), []string{"cmd/waybill/internal/demo: may not import github.com/spf13/cobra"}},
		{"user's command line compiles a leaf", fabricate("./waycli: ./internal/headers", "./internal/headers: ./waysqlite", "./waysqlite: modernc.org/sqlite!"), []string{"internal/headers: may not reach waysqlite, as by " + module + "/internal/headers -> " + module + "/waysqlite", "waycli: may not reach waysqlite, as by " + module + "/waycli -> " + module + "/internal/headers -> " + module + "/waysqlite"}},
		{"testing outside of tests", fabricate("./outbox: testing"), []string{"outbox: may not reach testing"}},
		{"testing through the standard library", fabricate("./outbox: net/http/httptest", "net/http/httptest: testing"), []string{"outbox: may not reach testing"}},
		{"new package", fabricate("./util: context", "./outboxes: context"), []string{"outboxes: no rule", "util: no rule"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := violations(tt.graph, rules)
			for i, v := range got {
				if i < len(tt.want) && strings.HasPrefix(v, tt.want[i]) {
					got[i] = tt.want[i]
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}
