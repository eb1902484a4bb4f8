package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

// The limits of a file and of a function that a reader takes in at once, in lines.
const (
	maxFile     = 350
	maxFunction = 60
	// production lines below internal/: queues, retry queues and operations of three databases share some 700;
	// the log of an outage is there for relays and workers, which do not import each other
	maxInternal = 2564
)

// TestStructure prints figures of the production code, and holds them to their limits.
// With -v they are printed where all is well, too.
func TestStructure(t *testing.T) {
	files := token.NewFileSet()
	lines, internal, interfaces := 0, 0, []string{}
	for name, text := range sourceFiles(t) {
		if !isProduction(name) {
			continue
		}
		parsed, err := parser.ParseFile(files, name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		n := strings.Count(string(text), "\n")
		lines += n
		if strings.HasPrefix(name, "internal/") {
			internal += n
		}
		if n > maxFile {
			t.Errorf("%s has %d lines, want at most %d: move a second thought to a file of its own", name, n, maxFile)
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.FuncDecl:
				if long := files.Position(node.End()).Line - files.Position(node.Pos()).Line + 1; long > maxFunction {
					t.Errorf("%s: %s has %d lines, want at most %d", files.Position(node.Pos()), node.Name.Name, long, maxFunction)
				}
			case *ast.TypeSpec:
				if _, ok := node.Type.(*ast.InterfaceType); ok && path.Dir(name) == "outbox" && node.Name.IsExported() {
					interfaces = append(interfaces, node.Name.Name)
				}
			}
			return true
		})
	}
	if internal > maxInternal {
		t.Errorf("%d production lines below internal/, want at most %d", internal, maxInternal)
	}
	slices.Sort(interfaces)
	floors, up := storeys(listPackages(t, ""))
	t.Logf("%d production lines, %d of them below internal/", lines, internal)
	t.Logf("interfaces of outbox: %v", interfaces)
	t.Logf("%d storeys of packages; %d imports of a public package by an internal one: %v", floors, len(up), up)
}

// isProduction reports whether a file is Go of the library or the program: no test, no
// harness, no example and no module of its own.
func isProduction(name string) bool {
	return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") &&
		!slices.ContainsFunc([]string{"internal/test/", "bench/", "examples/"}, func(dir string) bool { return strings.HasPrefix(name, dir) })
}

// storeys returns the length of the longest chain of imports in this module without its
// harness, and the imports that run from an internal package back up to a public one.
func storeys(g graph) (n int, up []string) {
	height := map[string]int{}
	var climb func(at string) int
	climb = func(at string) int {
		if h, ok := height[at]; ok {
			return h
		}
		for _, to := range g[at].Imports {
			from, to := relative(at), to
			if !strings.HasPrefix(to, module) {
				continue
			}
			height[at] = max(height[at], climb(to))
			if strings.HasPrefix(from, "internal/") && !strings.HasPrefix(relative(to), "internal/") {
				up = append(up, from+" -> "+relative(to))
			}
		}
		height[at]++
		return height[at]
	}
	for at := range g {
		if strings.HasPrefix(at, module) && !strings.HasPrefix(relative(at), "internal/test/") {
			n = max(n, climb(at))
		}
	}
	slices.Sort(up)
	return n, up
}
