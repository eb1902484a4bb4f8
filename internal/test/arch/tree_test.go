package arch

import (
	"bytes"
	"go/format"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sourceFiles returns the text files of the tree by their path below its root,
// the modules of examples and bench included. Files with a zero byte (built
// binaries, databases) are none of ours.
func sourceFiles(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == ".git":
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if bytes.IndexByte(text, 0) < 0 {
			rel, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			files[filepath.ToSlash(rel)] = text
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files["go.mod"] == nil {
		t.Fatalf("no go.mod in %s: the tests look at the wrong tree", root)
	}
	return files
}

// TestEveryGoFileIsFormatted says what gofmt -l would say.
func TestEveryGoFileIsFormatted(t *testing.T) {
	for name, text := range sourceFiles(t) {
		if filepath.Ext(name) != ".go" {
			continue
		}
		formatted, err := format.Source(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !bytes.Equal(text, formatted) {
			t.Errorf("%s is not formatted; run make fmt", name)
		}
	}
}

func TestNoFileNamesADirectoryOfABuildMachine(t *testing.T) {
	for name, text := range sourceFiles(t) {
		for _, line := range machinePaths(string(text)) {
			t.Errorf("%s holds a path of the machine it was written on: %s", name, line)
		}
	}
}

func TestMachinePathsAreFound(t *testing.T) {
	text := "a\nb /" + "work/main/go.mod\nc work/main\nd file:///" + "farm/x\n"
	if got := machinePaths(text); len(got) != 2 {
		t.Errorf("machinePaths = %q, want the lines b and d", got)
	}
}

// machinePaths returns the lines of text that hold such a path.
func machinePaths(text string) []string {
	var found []string
	for line := range strings.Lines(text) {
		for _, dir := range []string{"work", "farm"} {
			if strings.Contains(line, "/"+dir+"/") {
				found = append(found, strings.TrimSpace(line))
			}
		}
	}
	return found
}
