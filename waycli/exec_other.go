//go:build !unix

package waycli

import (
	"context"
	"os/exec"
)

// shellCommand returns command; the end of ctx kills the shell.
func shellCommand(ctx context.Context, command string) (cmd *exec.Cmd, goAhead func(), err error) {
	return exec.CommandContext(ctx, "cmd", "/C", command), func() {}, nil
}
