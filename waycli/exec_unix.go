//go:build unix

package waycli

import (
	"context"
	"os/exec"
	"syscall"
)

// shellCommand returns command in a process group of its own: a Ctrl-C at the
// terminal is for us alone, and the end of ctx kills all that it started.
func shellCommand(ctx context.Context, command string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}
