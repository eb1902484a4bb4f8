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
// 130. It is for func main; stop restores the default handling of the signals.
func WithSignals(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	last := &lastActs{}
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
			last.run()
			os.Exit(exitInterrupted)
		case <-stopped:
		}
	})
	return context.WithValue(ctx, lastActsKey{}, last), sync.OnceFunc(func() {
		signal.Stop(signals)
		cancel()
		close(stopped)
		wg.Wait()
	})
}

// lastActs are the functions to call before a second signal ends the process: they
// kill commands, which would outlive it. A nil *lastActs has none.
type lastActs struct {
	mu   sync.Mutex
	acts map[*func()]bool
}

type lastActsKey struct{}

func lastActsOf(ctx context.Context) *lastActs {
	l, _ := ctx.Value(lastActsKey{}).(*lastActs)
	return l
}

// during calls start, and adds act to the last acts until forget is called, unless
// start fails.
func (l *lastActs) during(start func() error, act func()) (forget func(), err error) {
	if l == nil {
		return func() {}, start()
	}
	l.mu.Lock() // a start and run exclude each other
	defer l.mu.Unlock()
	if err := start(); err != nil {
		return func() {}, err
	}
	if l.acts == nil {
		l.acts = map[*func()]bool{}
	}
	l.acts[&act] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.acts, &act)
	}, nil
}

// run calls the last acts. After it, during blocks.
func (l *lastActs) run() {
	l.mu.Lock() // for good: the process ends
	for act := range l.acts {
		(*act)()
	}
}
