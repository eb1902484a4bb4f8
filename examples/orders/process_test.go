//go:build unix

package orders_test

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// patience is how long anything here may take.
const patience = time.Minute

// build returns the directory of the three programs.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./orderservice", "./relay", "./billing").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return dir
}

// A process is one of the programs at work.
type process struct {
	name     string
	cmd      *exec.Cmd
	out, log bytes.Buffer
	ended    chan error // takes the result of Wait, once
}

// start starts a program. Whatever is left of it at the end of the test is
// killed.
func start(t *testing.T, bin, name string, args ...string) *process {
	t.Helper()
	p := &process{name: name, cmd: exec.Command(filepath.Join(bin, name), args...), ended: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { // ends with the process, which the cleanup ends
		p.ended <- p.cmd.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // an error says that it has ended
		<-exited
		if t.Failed() && p.log.Len() > 0 {
			t.Logf("%s said:\n%s", name, p.log.String())
		}
	})
	return p
}

// kill ends the process as a crash does, with SIGKILL, and fails the test when
// it had ended before.
func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatalf("kill %s: %v", p.name, err)
	}
	_ = p.end(t)
	if status := p.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Fatalf("%s ended by itself: %v", p.name, p.cmd.ProcessState)
	}
}

// stop ends the process with SIGTERM and returns its output.
func (p *process) stop(t *testing.T) string {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("stop %s: %v", p.name, err)
	}
	return p.wait(t)
}

// wait returns the output of the process, which must end without an error.
func (p *process) wait(t *testing.T) string {
	t.Helper()
	if err := p.end(t); err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	return p.out.String()
}

func (p *process) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.ended:
		return err
	case <-time.After(patience):
		t.Fatalf("%s has not ended after %v", p.name, patience)
		return nil
	}
}

// waitUntil asks until done is true, and ends the test when patience does.
func waitUntil(t *testing.T, what string, done func() (bool, error)) {
	t.Helper()
	if err := within(patience, done); err != nil {
		t.Fatalf("still not: %s: %v", what, err)
	}
}

// within asks until done is true. An error of done may pass: the programs
// create their databases themselves.
func within(limit time.Duration, done func() (bool, error)) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		ok, err := done()
		if ok && err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited for %v, last error: %v", limit, err)
		}
	}
}
