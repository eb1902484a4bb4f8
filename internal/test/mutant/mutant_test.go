package main

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../../.." // the module's directory, seen from this package

func TestEveryMutantHasACheck(t *testing.T) {
	for _, m := range mutants {
		if !slices.ContainsFunc(checks, func(c check) bool { return c.mutant == m.name }) {
			t.Errorf("no check is to catch %s", m.name)
		}
	}
	for _, c := range checks {
		if _, err := find([]string{c.mutant}); err != nil {
			t.Errorf("%s: %v", c.name(), err)
		}
	}
}

func TestMutantsFitTheCodeAndCompile(t *testing.T) {
	for _, m := range mutants {
		overlay, err := m.overlay(root, t.TempDir())
		if err != nil {
			t.Error(err)
			continue
		}
		args := []string{"build", "-overlay", overlay}
		for _, e := range m.edits {
			if dir := "./" + path.Dir(strings.Replace(e.file, "/sql/", "/", 1)); !slices.Contains(args, dir) {
				args = append(args, dir)
			}
		}
		cmd := exec.Command("go", args...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: mend its edits in internal/test/mutant/mutants.go\n%s", m.name, err, out)
		}
	}
}

func TestEditNeedsItsTextOnce(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte("package a // twice twice once"), 0o644); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"never": "bug: a.go has this text 0 times, and an edit needs it once: change the edit in internal/test/mutant/mutants.go",
		"twice": "bug: a.go has this text 2 times, and an edit needs it once: change the edit in internal/test/mutant/mutants.go",
	} {
		if _, err := (mutant{"bug", []edit{{"a.go", text, ""}}}).apply(dir); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("text %q: %v, want %s", text, err, want)
		}
	}
	if _, err := (mutant{"bug", []edit{{"b.go", "once", ""}}}).apply(dir); err == nil || !strings.Contains(err.Error(), "names a file that is gone") {
		t.Errorf("missing file: %v, want an error that says so", err)
	}
	files, err := mutant{"bug", []edit{{"a.go", "once", "thrice"}, {"a.go", "thrice", "ever"}}}.apply(dir)
	if got, want := files["a.go"], "package a // twice twice ever"; err != nil || got != want {
		t.Errorf("two edits: %q, %v, want %q", got, err, want)
	}
}
