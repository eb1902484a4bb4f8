package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A promise that names a test which is gone has no guard.
func TestInvariantsNameTestsThatExist(t *testing.T) {
	const root = "../.."
	tests := map[string]bool{}
	define := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w+)\(`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range define.FindAllStringSubmatch(string(text), -1) {
			tests[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, doc := range []string{"invariants.md", "testing.md"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("`((?:Test|Fuzz|Example)\\w+)`").FindAllStringSubmatch(string(text), -1) {
			named++
			if !tests[m[1]] {
				t.Errorf("docs/%s names %s, and there is no such test", doc, m[1])
			}
		}
	}
	if named < 15 {
		t.Errorf("only %d tests are named: is the pattern still right?", named)
	}
}
