//go:build unix

package waycli

import (
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
)

// A reaper is a process that kills the commands of this one, with their child processes,
// when this one ends without doing so, as by kill -9: its standard input ends then, on any
// Unix. (Pdeathsig would be Linux alone, and leave the child processes of a shell running.)
type reaper struct {
	cmd *exec.Cmd

	mu   sync.Mutex
	pipe io.WriteCloser // guarded by mu
}

// reaperScript reads "+ PID" for a process group that has begun and "- PID" for one that has
// ended. It outlives signals to a terminal or a control group, to which it may belong.
const reaperScript = `trap '' HUP INT TERM
running=" "
while read -r change pid; do
	case $change in
	+) running="$running$pid " ;;
	-) running="${running%% $pid *} ${running#* $pid }" ;;
	esac
done
for pid in $running; do kill -9 -"$pid" 2>/dev/null; done`

// startReaper starts a reaper, which ends with Close.
func startReaper() (*reaper, error) {
	cmd := exec.Command("/bin/sh", "-c", reaperScript)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := cmd.StdinPipe() // which no command inherits
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("the process that kills commands when this one is killed: %w", err)
	}
	return &reaper{cmd: cmd, pipe: pipe}, nil
}

// begun adds a command, and returns the function that removes it after its end.
func (r *reaper) begun(cmd *exec.Cmd) (ended func()) {
	if r == nil {
		return func() {}
	}
	r.write("+ %d\n", cmd.Process.Pid)
	return func() { r.write("- %d\n", cmd.Process.Pid) }
}

func (r *reaper) write(format string, pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.pipe, format, pid) // without a reaper commands run on, as without this process
}

// Close ends the reaper, which kills the commands that run.
func (r *reaper) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.pipe.Close()
	_ = r.cmd.Wait() // of its kills some find nothing
	return nil
}
