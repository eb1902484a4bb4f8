package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/config"
)

var (
	fence = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```")
	space = regexp.MustCompile(`\s+`)
)

// pages returns the blocks of a language in the README and the pages of this directory,
// by page.
func pages(t *testing.T, language string) map[string][]string {
	files, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string][]string{}
	for _, file := range append(files, "../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
			if m[1] == language {
				blocks[file] = append(blocks[file], m[2])
			}
		}
	}
	return blocks
}

// Each block of Go stands in a test file that runs, indentation aside. The program of
// service.md is built and run from the page.
func TestGoOfThePagesRuns(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, file := range append(files, "../example_test.go", "../dashboard/example_test.go") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code.WriteString(space.ReplaceAllString(string(text), " "))
	}
	count := 0
	for file, blocks := range pages(t, "go") {
		for _, block := range blocks {
			count++
			if file != "service.md" && !strings.Contains(code.String(), strings.TrimSpace(space.ReplaceAllString(block, " "))) {
				t.Errorf("no test file has this block of %s:\n%s", file, block)
			}
		}
	}
	if count < 15 {
		t.Errorf("found %d blocks: is the pattern still right?", count)
	}
}

func TestConfigurationsOfThePagesParse(t *testing.T) {
	for file, blocks := range pages(t, "yaml") {
		for _, block := range blocks {
			if _, err := config.Parse("waybill.yaml", []byte(block), func(name string) (string, bool) { return "secret", name != "WAYBILL_DATABASE_URL" }); err != nil {
				t.Errorf("%s: %v in\n%s", file, err, block)
			}
		}
	}
}

// Each link to a file leads there, and each link to a heading to one of that page.
func TestLinksOfThePagesLead(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^):# ]*)(#[^) ]*)?\)`)
	heading := regexp.MustCompile("(?m)^#+ (.*)$")
	files, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
			to := filepath.Join(filepath.Dir(file), m[1])
			if m[1] == "" {
				to = file
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			if m[2] == "" {
				continue
			}
			page, _ := os.ReadFile(to)
			found := false
			for _, h := range heading.FindAllStringSubmatch(string(page), -1) {
				anchor := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(h[1]), "")
				found = found || m[2] == "#"+strings.ReplaceAll(anchor, " ", "-")
			}
			if !found {
				t.Errorf("%s: no heading %s in %s", file, m[2], to)
			}
		}
	}
}
