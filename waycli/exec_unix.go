//go:build unix

package waycli

import (
	"context"
	"os"
	"os/exec"
	"syscall"
)

// shellCommand returns command in a separate process group: a Ctrl-C at the terminal
// does not reach it, and the end of ctx kills it with its child processes. Once started it
// waits for goAhead, and ends if this process ends before. goAhead must be called; a second
// call does nothing.
func shellCommand(ctx context.Context, command string) (cmd *exec.Cmd, goAhead func(), err error) {
	wait, begin, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd = exec.CommandContext(ctx, "/bin/sh", "-c", `read -r _ <&3 && exec 3<&- && exec /bin/sh -c "$1"`, "sh", command)
	cmd.ExtraFiles = []*os.File{wait}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd, func() {
		_, _ = begin.WriteString("\n") // nobody reads it if the command was killed
		_, _ = begin.Close(), wait.Close()
	}, nil
}
