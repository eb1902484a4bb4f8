package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each test that the comparison names exists, and each row that claims something has one or
// a page.
func TestComparisonNamesTestsThatExist(t *testing.T) {
	var code strings.Builder
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		code.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("comparison.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 10 || strings.Contains(line, "---") || strings.Contains(cells[8], "shown by") {
			continue
		}
		rows++
		proof := strings.TrimSpace(cells[8])
		if proof == "" && !strings.Contains(cells[7], "**no**") {
			t.Errorf("nothing shows this: %s", line)
		}
		for _, name := range regexp.MustCompile("`(Test[^`]+)`").FindAllStringSubmatch(proof, -1) {
			if !strings.Contains(code.String(), "func "+name[1]+"(") {
				t.Errorf("there is no test %s", name[1])
			}
		}
	}
	if rows < 30 {
		t.Errorf("found %d rows: is the table still one?", rows)
	}
}
