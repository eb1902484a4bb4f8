package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLoadPrefersPathThenEnvironmentThenWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	write := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("database: sqlite://./"+name+".db"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	load := func(path, env string) string {
		t.Helper()
		c, err := Load(path, environment(map[string]string{"WAYBILL_CONFIG": env}))
		if err != nil {
			t.Fatal(err)
		}
		return c.Database.Path
	}
	if got := load("", ""); got != "./waybill.db" {
		t.Errorf("without any file: %s, want the default", got)
	}
	write("waybill.yaml")
	if got := load("", ""); got != "./waybill.yaml.db" {
		t.Errorf("in the working directory: %s", got)
	}
	fromEnv, named := write("env.yaml"), write("named.yaml")
	if got := load("", fromEnv); got != "./env.yaml.db" {
		t.Errorf("with WAYBILL_CONFIG: %s", got)
	}
	if got := load(named, fromEnv); got != "./named.yaml.db" {
		t.Errorf("with a path: %s", got)
	}
}

func TestLoadRefusesANamedFileThatIsMissing(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct{ path, env, want string }{
		{"gone.yaml", "", "gone.yaml: there is no such file (give the path of one, or leave it out: then waybill.yaml is read if it exists)"},
		{"", "gone.yaml", "gone.yaml: there is no such file (named by WAYBILL_CONFIG)"},
		{"waybill.yaml", "", "waybill.yaml: there is no such file (give the path of one, or leave it out: then waybill.yaml is read if it exists)"},
	} {
		_, err := Load(c.path, environment(map[string]string{"WAYBILL_CONFIG": c.env}))
		if !errors.Is(err, fs.ErrNotExist) || err.Error() != c.want {
			t.Errorf("Load(%q) with %q = %v, want %s", c.path, c.env, err, c.want)
		}
	}
	if err := os.Mkdir("waybill.yaml", 0o700); err != nil {
		t.Fatal(err)
	}
	for env, want := range map[string]string{"": " (give the path of a file that", "waybill.yaml": " (named by WAYBILL_CONFIG; give the path of a file that"} {
		if _, err := Load("", environment(map[string]string{"WAYBILL_CONFIG": env})); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load of a waybill.yaml that cannot be read = %v, want an error with %q", err, want)
		}
	}
}

func TestLoadDoesNotRunTheDefaultsBesideAMisnamedFile(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("waybill.yml", []byte("database: sqlite://./yml.db"), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "waybill.yml: this file is not read, and there is no waybill.yaml (rename it, or give its path)"
	if c, err := Load("", environment(nil)); err == nil || err.Error() != want {
		t.Errorf("Load beside waybill.yml = %v, %v, want %s", c, err, want)
	}
	if c, err := Load("waybill.yml", environment(nil)); err != nil || c.Database.Path != "./yml.db" {
		t.Errorf("Load of waybill.yml = %v, %v", c, err)
	}
	if err := os.WriteFile(DefaultFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load("", environment(nil)); err != nil {
		t.Errorf("Load of %s beside waybill.yml = %v", DefaultFile, err)
	}
}

func TestLoadReadsTheEnvironmentOfTheProcessByDefault(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("WAYBILL_CONFIG", "")
	t.Setenv("WAYBILL_DATABASE_URL", "sqlite://./process.db")
	c, err := Load("", nil)
	if err != nil || c.Database.Path != "./process.db" {
		t.Errorf("Load = %v, %v", c, err)
	}
}
