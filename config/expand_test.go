package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExpandReplacesVariablesAndFiles(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"secret": "s$e${A}\n", "crlf": "x\r\n", "two": "x\n\n", "empty": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	x := expander{getenv: environment(map[string]string{"A": "a$${B}", "EMPTY": "", "_x1": "u"}), dir: dir}
	for s, want := range map[string]string{
		"plain": "plain", "${A}": "a$${B}", "<${A}${_x1}>": "<a$${B}u>", "${EMPTY}": "", "${EMPTY:-d}": "d", "${NONE:-}": "",
		"${NONE:-sqlite://./w.db}": "sqlite://./w.db", "${A:-d}": "a$${B}", "$$": "$", "$${A}": "${A}", "$$$$": "$$",
		"${NONE:-a$$b}": "a$b", "${file:secret}": "s$e${A}", "${file:" + dir + "/crlf}": "x", "${file:two}": "x\n", "${file:empty}": "",
	} {
		if got, _, err := x.expand(s); err != nil || got != want {
			t.Errorf("expand(%q) = %q, %v, want %q", s, got, err, want)
		}
	}
	for s, want := range map[string]string{
		"$": "a bare $", "$A": "a bare $", "a$ b": "a bare $", "${A": "${ without }", "${}": "not a variable name", "${a-b}": "not a variable name",
		"${1}": "not a variable name", "${NONE}": "variable NONE is not set", "${NONE:-${A}}": "a $ in the default of ${NONE}",
		"${file:}": "without a path", "${file:gone}": "gone: no such file or directory (a relative path begins at the directory of the configuration)",
		"${file:.}": "is a directory (give the path of a file that the user of this process may read)",
	} {
		if got, _, err := x.expand(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expand(%q) = %q, %v, want an error with %q", s, got, err, want)
		}
	}
}

func TestAFileThatIsTooLargeIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, 1<<20+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (expander{dir: dir}).expand("${file:large}"); err == nil {
		t.Error("1 MiB and a byte was read")
	}
}

func TestFilesAreFoundFromTheDirectoryOfTheConfiguration(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "url"), []byte("sqlite://./from-file.db\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "waybill.yaml")
	c, err := Parse(name, []byte("database: ${file:url}"), environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	if want := name + ":1, file " + filepath.Join(dir, "url"); c.Origins()["database"] != want || c.Database.Path != "./from-file.db" {
		t.Errorf("database = %v from %q, want it from %q", c.Database, c.Origins()["database"], want)
	}
	_, err = Parse(name, []byte("database: ${file:gone}"), environment(nil))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file is %v, want fs.ErrNotExist", err)
	}
}
