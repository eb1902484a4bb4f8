//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A process is a command of a build at work.
type process struct {
	f     *fixture
	name  string
	cmd   *exec.Cmd
	out   output
	ended chan struct{}
}

// output is written by the process and may be read meanwhile.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// A result is the JSON of a process at its end.
type result struct {
	Reason     string `json:"reason"`
	Handled    int    `json:"handled"`
	Duplicates int    `json:"duplicates"`
	Failed     int    `json:"failed"`
}

// start starts a command, which ends with the test at the latest.
func (f *fixture) start(version string, args ...string) *process {
	f.t.Helper()
	return f.startProgram(programs[version], args...)
}

// startProgram is start for a file.
func (f *fixture) startProgram(file string, args ...string) *process {
	p := &process{f: f, name: strings.Join(args, " "), cmd: exec.Command(file, append(args, "--json")...), ended: make(chan struct{})}
	p.cmd.Env = f.environment()
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	f.try(p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	f.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // an error says that it has ended
		<-p.ended
		if f.t.Failed() {
			f.t.Logf("%s said:\n%s", p.name, p.out.String())
		}
	})
	return p
}

// kill ends the process as a crash does.
func (p *process) kill() {
	p.f.t.Helper()
	p.f.try(p.cmd.Process.Kill())
	<-p.ended
}

// stop ends the process with SIGTERM and returns its result.
func (p *process) stop() result {
	p.f.t.Helper()
	p.f.try(p.cmd.Process.Signal(syscall.SIGTERM))
	return p.wait()
}

// wait returns the result of a process that ends in good order.
func (p *process) wait() (r result) {
	p.f.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.f.t.Fatalf("%s does not end", p.name)
	}
	lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
	for _, line := range lines {
		if strings.HasPrefix(line, `{"reason"`) {
			p.f.try(json.Unmarshal([]byte(line), &r))
		}
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 || r.Reason == "" {
		p.f.t.Fatalf("%s exits with %d and no result", p.name, code)
	}
	return r
}
