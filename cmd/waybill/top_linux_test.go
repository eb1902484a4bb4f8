package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/term"

	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waysqlite"
)

// A pseudoTerminal is both ends of a terminal, and the output of the program.
type pseudoTerminal struct {
	user, program *os.File

	mu   sync.Mutex
	seen bytes.Buffer // guarded by mu
}

func openPseudoTerminal(t *testing.T) *pseudoTerminal {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = user.Close() })
	var number, unlock uint32
	size := [4]uint16{24, 80}
	for request, value := range map[uintptr]unsafe.Pointer{syscall.TIOCGPTN: unsafe.Pointer(&number), syscall.TIOCSPTLCK: unsafe.Pointer(&unlock), syscall.TIOCSWINSZ: unsafe.Pointer(&size)} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, user.Fd(), request, uintptr(value)); errno != 0 {
			t.Fatal(errno)
		}
	}
	program, err := os.OpenFile(filepath.Join("/dev/pts", fmt.Sprint(number)), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	p := &pseudoTerminal{user: user, program: program}
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := user.Read(buffer)
			if err != nil {
				return
			}
			p.mu.Lock()
			p.seen.Write(buffer[:n])
			p.mu.Unlock()
		}
	}()
	return p
}

// await waits until something was written to the terminal, which it then forgets.
func (p *pseudoTerminal) await(t *testing.T, what string) {
	t.Helper()
	for range 1000 {
		p.mu.Lock()
		_, rest, ok := strings.Cut(p.seen.String(), what)
		if ok {
			p.seen.Reset()
			p.seen.WriteString(rest)
		}
		all := p.seen.String()
		p.mu.Unlock()
		switch {
		case ok:
			return
		case len(all) > 1<<20:
			t.Fatal("a screen without end")
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the terminal did not show %q within 10s", what)
}

// inDirectory changes to a directory of the test's own, with that waybill.yaml and tables.
func inDirectory(t *testing.T, file string) {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.WriteFile("waybill.yaml", []byte(file+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := runMain(t, "schema", "up"); code != 0 {
		t.Fatalf("schema up: exit %d: %s", code, stderr)
	}
}

func TestTopGivesTheTerminalBack(t *testing.T) {
	inDirectory(t, "transports: { work: { dsn: queue://work } }")
	for name, end := range map[string]func(p *pseudoTerminal, signal func()){
		"q":      func(p *pseudoTerminal, _ func()) { _, _ = p.user.WriteString("q") },
		"ctrl-c": func(p *pseudoTerminal, _ func()) { _, _ = p.user.WriteString("\x03") },
		"signal": func(_ *pseudoTerminal, signal func()) { signal() },
	} {
		t.Run(name, func(t *testing.T) {
			p := openPseudoTerminal(t)
			before, err := term.GetState(int(p.program.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			ctx, signal := context.WithCancel(t.Context())
			defer signal()
			var stderr bytes.Buffer
			ended := make(chan int)
			go func() { ended <- waycli.Main(ctx, app(), []string{"top"}, p.program, p.program, &stderr) }()
			p.await(t, "\x1b[?1049h")
			p.await(t, "q quits") // a frame
			p.await(t, "q quits") // and the next, by time
			if _, err := p.user.WriteString("p"); err != nil {
				t.Fatal(err)
			}
			p.await(t, "paused")
			end(p, signal)
			if code := <-ended; code != 0 || stderr.Len() > 0 {
				t.Errorf("top: exit %d with %q, want 0", code, stderr.String())
			}
			p.await(t, "\x1b[?7h\x1b[?25h\x1b[?1049l")
			after, err := term.GetState(int(p.program.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			if *after != *before {
				t.Errorf("the terminal is %+v, want %+v as before", after, before)
			}
		})
	}
}

// A no to either question of inbox prune leaves the retention, and with it the guard, as they are.
func TestPruneThatIsNotConfirmedChangesNothing(t *testing.T) {
	inDirectory(t, "inbox: { retention: 10d }")
	db, err := waysqlite.Open(t.Context(), "waybill.db", waysqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.SetInboxRetention(t.Context(), 30*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := db.SQL().ExecContext(t.Context(), "INSERT INTO waybill_inbox (handler, dedup_key, message_id, processed_at) VALUES ('h', 'k', randomblob(16), 1)"); err != nil {
		t.Fatal(err)
	}
	prune := func(answers ...string) int {
		p := openPseudoTerminal(t)
		ended := make(chan int)
		go func() {
			ended <- waycli.Main(t.Context(), app(), []string{"inbox", "prune", "--lower-retention"}, p.program, p.program, p.program)
		}()
		for _, answer := range answers {
			p.await(t, "[y/N]")
			if _, err := p.user.WriteString(answer + "\n"); err != nil {
				t.Fatal(err)
			}
		}
		return <-ended
	}
	for _, answers := range [][]string{{"n"}, {"y", "n"}} {
		if code := prune(answers...); code != 4 {
			t.Errorf("answered %q: exit %d, want 4", answers, code)
		}
		if got, err := db.InboxRetention(t.Context()); err != nil || got != 30*24*time.Hour {
			t.Errorf("answered %q: the retention is %v, %v, want that it is as before", answers, got, err)
		}
	}
	if code := prune("y", "y"); code != 0 {
		t.Errorf("answered with yes: exit %d", code)
	}
	if got, err := db.InboxRetention(t.Context()); err != nil || got != 10*24*time.Hour {
		t.Errorf("answered with yes: the retention is %v, %v", got, err)
	}
}
