//go:build !unix

package waycli

import (
	"context"
	"os/exec"
)

// shellCommand returns command; the end of ctx kills the shell.
func shellCommand(ctx context.Context, command string) *exec.Cmd {
	return exec.CommandContext(ctx, "cmd", "/C", command)
}
