//go:build unix

package waycli

import (
	"os"
	"syscall"
	"testing"
)

func TestFirstSignalEndsTheContextAndNotTheProcess(t *testing.T) {
	ctx, stop := WithSignals(t.Context())
	defer stop()
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
}
