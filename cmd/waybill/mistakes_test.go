package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/waycli"
)

// A mistake is one of those that a new user made on purpose, and what waybill says to it: what
// is wrong, where, and what to do.
type mistake struct {
	number int
	what   string
	answer func(*testing.T) string // makes the mistake
	says   []string                // parts of the answer
}

// TestMistakes makes each of the mistakes. Their tables are in the files mistakes_*_test.go.
func TestMistakes(t *testing.T) {
	all := mistakesInTheFile
	for i, m := range all {
		if m.number != i+1 {
			t.Errorf("mistake %d stands where %d belongs", m.number, i+1)
		}
		t.Run(fmt.Sprintf("%02d %s", m.number, m.what), func(t *testing.T) {
			got := m.answer(t)
			for _, want := range m.says {
				if !strings.Contains(got, want) {
					t.Errorf("the answer lacks %q:\n%s", want, got)
				}
			}
			if strings.Contains(got, password) {
				t.Errorf("the answer has the password:\n%s", got)
			}
		})
	}
}

// password is that of every mistake with a password.
const password = "s3cr3t"

// command runs a command in a directory that has only a waybill.yaml, and returns what it
// says. The command must end with an exit code.
func command(exit int, file string, args ...string) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		t.Chdir(t.TempDir())
		writeFile(t, "waybill.yaml", file)
		return say(t, exit, args...)
	}
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// say runs a command of waybill, which must end with an exit code, and returns what it says.
func say(t *testing.T, exit int, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if got := waycli.Main(t.Context(), app(), args, strings.NewReader(""), &out, &out); got != exit {
		t.Errorf("waybill %s: exit code %d, want %d", strings.Join(args, " "), got, exit)
	}
	return out.String()
}
