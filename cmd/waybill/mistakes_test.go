package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waysqlite"
)

// A mistake of a new user, and the parts of the answer to it: the cause, its place and the
// remedy.
type mistake struct {
	number int
	what   string
	answer func(*testing.T) string // makes the mistake
	says   []string                // parts of the answer
}

// TestMistakes makes each of the mistakes. Their tables are in the files mistakes_*_test.go.
func TestMistakes(t *testing.T) {
	all := slices.Concat(mistakesInTheFile, mistakesWithCommands, mistakesInTheProgram, mistakesAtWork)
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

// command runs a command in a directory that has only a waybill.yaml, and returns its output.
// The command must end with an exit code.
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
	fatal(t, os.WriteFile(name, []byte(text), 0o600))
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refusal returns the text of an error, which must not be nil.
func refusal(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		t.Error("the mistake is accepted")
		return ""
	}
	return err.Error()
}

// openDB opens a database without tables.
func openDB(t *testing.T) *waysqlite.DB {
	t.Helper()
	db, err := waysqlite.Open(t.Context(), t.TempDir()+"/shop.db", waysqlite.Config{})
	fatal(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// say runs a command of waybill, which must end with an exit code, and returns its output.
func say(t *testing.T, exit int, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if got := waycli.Main(t.Context(), app(), args, strings.NewReader(""), &out, &out); got != exit {
		t.Errorf("waybill %s: exit code %d, want %d", strings.Join(args, " "), got, exit)
	}
	return out.String()
}

// started runs a command until the test ends, and returns once its output has a text.
func started(t *testing.T, text string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var said transcript
	var ended sync.WaitGroup
	ended.Go(func() { waycli.Main(ctx, app(), args, strings.NewReader(""), &said, &said) })
	t.Cleanup(func() {
		cancel()
		ended.Wait()
	})
	until(t, text, said.String)
}

// until polls until the result of said contains text, and returns it.
func until(t *testing.T, text string, said func() string) string {
	t.Helper()
	for start := time.Now(); time.Since(start) < 30*time.Second; time.Sleep(20 * time.Millisecond) {
		if got := said(); strings.Contains(got, text) {
			return got
		}
	}
	t.Fatalf("waited in vain for %q:\n%s", text, said())
	return ""
}

// A transcript may be written by several goroutines.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (tr *transcript) Write(p []byte) (int, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.text.Write(p)
}

func (tr *transcript) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.text.String()
}
