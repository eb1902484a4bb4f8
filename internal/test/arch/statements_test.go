package arch

import (
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestEveryStatementIsRun finds named statements of a database whose name no Go code has: its own, or
// that of the packages which run statements of every database. The code may have only the end of a name.
func TestEveryStatementIsRun(t *testing.T) {
	statement := regexp.MustCompile(`(?m)^-- name: (\S+)`)
	code := map[string]string{} // by package
	files := sourceFiles(t)
	for name, text := range files {
		if isProduction(name) {
			code[path.Dir(name)] += string(text)
		}
	}
	found := 0
	for name, text := range files {
		database, _, _ := strings.Cut(name, "/sql/")
		if path.Ext(name) != ".sql" || code[database] == "" {
			continue
		}
		runs := code[database] + code["internal/sqlcore"] + code["history"]
		for _, m := range statement.FindAllStringSubmatch(string(text), -1) {
			found++
			_, end, _ := strings.Cut(m[1], "_")
			if !strings.Contains(runs, `"`+m[1]+`"`) && !strings.Contains(runs, `"_`+end+`"`) {
				t.Errorf("%s: nothing runs the statement %s", name, m[1])
			}
		}
	}
	if found < 500 {
		t.Errorf("found %d statements, want those of three databases", found)
	}
}
