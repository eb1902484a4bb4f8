package waycli

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// WithSignals returns a context that ends with the first SIGINT or SIGTERM, so
// that the command stops in order. The second ends the process with exit code
// 130. It is for func main; stop gives the signals back.
func WithSignals(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-signals:
			cancel()
		case <-stopped:
			return
		}
		select {
		case <-signals:
			os.Exit(exitInterrupted)
		case <-stopped:
		}
	})
	return ctx, sync.OnceFunc(func() {
		signal.Stop(signals)
		cancel()
		close(stopped)
		wg.Wait()
	})
}
