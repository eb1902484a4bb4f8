package arch

import (
	"cmp"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A promise that names a test, or a case of a conformance suite, which is gone
// has no guard.
func TestInvariantsNameTestsThatExist(t *testing.T) {
	const root = "../../.."
	tests := map[string]bool{}
	define := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w+)\(`)
	defineCase := regexp.MustCompile(`(?m)^\t\t\{"(\w+)", \w+\[TX\]\},$`)
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".go") {
			return err
		}
		text, err := os.ReadFile(file)
		if filepath.Base(filepath.Dir(file)) == "waytest" {
			suite := map[string]string{"inbox.go": "Inbox/", "queue.go": "Queue/", "retries.go": "Retries/"}[d.Name()]
			for _, m := range defineCase.FindAllStringSubmatch(string(text), -1) {
				tests[cmp.Or(suite, "Outbox/")+m[1]] = true
			}
		}
		if strings.HasSuffix(file, "_test.go") {
			for _, m := range define.FindAllStringSubmatch(string(text), -1) {
				tests[m[1]] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	docs, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range docs {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("`((?:Test|Fuzz|Example|Outbox/|Inbox/|Queue/|Retries/)\\w+)`").FindAllStringSubmatch(string(text), -1) {
			named++
			if !tests[m[1]] {
				t.Errorf("%s names %s, and there is no such test", doc, m[1])
			}
		}
	}
	if named < 15 {
		t.Errorf("only %d tests are named: is the pattern still right?", named)
	}
}

// A map that names a file which is gone misleads.
func TestArchitectureNamesFilesThatExist(t *testing.T) {
	const root = "../../.."
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z]+(?:/[a-z0-9_]+)*(?:/[a-z0-9_]+\\.(?:go|sql)|\\.go)|internal/[a-z]+)`").FindAllStringSubmatch(string(text), -1)
	for _, m := range named {
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Errorf("docs/architecture.md names %s: %v", m[1], err)
		}
	}
	// `file` (`name`, `name`): the names stand in the file.
	for _, m := range regexp.MustCompile(`\x60([a-z]+[a-z0-9_/]*\.(?:go|sql))\x60 \((\x60[^)]*\x60)\)`).FindAllStringSubmatch(string(text), -1) {
		code, err := os.ReadFile(filepath.Join(root, m[1]))
		if err != nil {
			t.Error(err)
		}
		for _, name := range regexp.MustCompile(`\w+`).FindAllString(m[2], -1) {
			if !strings.Contains(string(code), name) {
				t.Errorf("docs/architecture.md: %s is not in %s", name, m[1])
			}
		}
	}
	if len(named) < 60 {
		t.Errorf("only %d files are named: is the pattern still right?", len(named))
	}
}

func TestEveryPublicPackageHasAnExample(t *testing.T) {
	code, example := map[string]bool{}, map[string]bool{}
	for name, text := range sourceFiles(t) {
		dir := path.Dir(name)
		if strings.HasSuffix(name, "_test.go") {
			example[dir] = example[dir] || strings.Contains(string(text), "\nfunc Example")
		} else if path.Ext(name) == ".go" {
			code[dir] = true
		}
	}
	for _, r := range rules {
		if code[r.packages] && !example[r.packages] && !strings.Contains(r.packages, "/") {
			t.Errorf("package %s has no example", r.packages)
		}
	}
}
