//go:build unix

package waycli

import (
	"context"
	"os/exec"
	"syscall"
)

// shellCommand returns command in a separate process group: a Ctrl-C at the terminal
// does not reach it, and the end of ctx kills it with its child processes.
func shellCommand(ctx context.Context, command string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}
