package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// takeover is longer than a relay on standby takes to notice that it is needed,
// so that it goes to work before its replacement can.
const takeover = 75 * time.Millisecond

// maxStall bounds the time for which the broker does not answer.
const maxStall = 300 * time.Millisecond

// relays is how many relay processes there are: one at work, one standing by.
const relays = 2

// fleet keeps the relay processes. Only one goroutine at a time uses it.
type fleet struct {
	opt     Options
	site    *deployment
	figures *Figures
	dice    *rand.Rand
	ships   []*ship // oldest first: the oldest is the one at work
	log     *os.File
	stdout  io.Writer // of the processes; nil means log
}

// ship is one relay process.
type ship struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

func newFleet(opt Options, site *deployment, figures *Figures) *fleet {
	return &fleet{opt: opt, site: site, figures: figures, dice: dice(opt, 1)}
}

// open creates the log of the processes.
func (f *fleet) open(name string) (err error) {
	f.log, err = os.Create(filepath.Join(f.site.dir, name))
	return err
}

func (f *fleet) start() error {
	if err := f.open("relay.log"); err != nil {
		return err
	}
	for range relays {
		if err := f.launch(); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) launch() error {
	args := append(append([]string{}, f.opt.Relay[1:]...), f.site.config)
	cmd := exec.Command(f.opt.Relay[0], args...)
	cmd.Stdout, cmd.Stderr = f.log, f.log
	if f.stdout != nil {
		cmd.Stdout = f.stdout
	}
	cmd.SysProcAttr = apart()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("relay process: %w", err)
	}
	s := &ship{cmd: cmd, done: make(chan struct{})}
	go func() { // ends with the process, which stop waits for
		_ = cmd.Wait()
		close(s.done)
	}()
	f.ships = append(f.ships, s)
	return nil
}

// kill kills relays with SIGKILL until ctx ends, mostly the one at work, and
// replaces them. A relay that ends by itself is an error.
func (f *fleet) kill(ctx context.Context) error {
	for {
		pause(ctx, killMin+time.Duration(f.dice.Int64N(int64(killMax-killMin))))
		if ctx.Err() != nil {
			return nil
		}
		if err := f.strike(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		pause(ctx, takeover)
		for len(f.ships) < relays {
			if err := f.launch(); err != nil {
				return err
			}
		}
	}
}

// strike kills one relay: half of the time while the broker does not answer,
// otherwise while there is work.
func (f *fleet) strike(ctx context.Context) error {
	if f.dice.Float64() < 0.5 {
		proceed, err := f.stallBroker(ctx)
		if err != nil {
			return err
		}
		defer proceed()
	} else if err := f.waitForWork(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	victim := 0
	if f.dice.Float64() < 0.2 {
		victim = len(f.ships) - 1
	}
	s := f.ships[victim]
	select {
	case <-s.done:
		return f.endedByItself()
	default:
	}
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.done
	f.figures.kills.Add(1)
	f.ships = append(f.ships[:victim], f.ships[victim+1:]...)
	return nil
}

// stallBroker keeps the broker from storing anything until proceed is called,
// and returns when messages were committed meanwhile and a relay has had time
// to run into the stall with them.
func (f *fleet) stallBroker(ctx context.Context) (proceed func(), err error) {
	proceed, err = f.site.broker.stall(ctx)
	if err != nil {
		return nil, err
	}
	before, start := f.figures.committed.Load(), time.Now()
	for f.figures.committed.Load() < before+3 && time.Since(start) < maxStall && ctx.Err() == nil {
		pause(ctx, time.Millisecond)
	}
	pause(ctx, 15*time.Millisecond+time.Duration(f.dice.Int64N(int64(30*time.Millisecond))))
	return proceed, nil
}

// waitForWork returns at a random moment soon after the outbox has something,
// so that a kill hits a relay that is claiming, publishing or deleting.
func (f *fleet) waitForWork(ctx context.Context) error {
	for ctx.Err() == nil {
		left, err := f.site.orders.Backlog(ctx, transport)
		if err != nil {
			return err
		}
		if left.Pending > 0 {
			pause(ctx, time.Duration(f.dice.Int64N(int64(3*time.Millisecond))))
			return nil
		}
		pause(ctx, time.Millisecond)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (f *fleet) endedByItself() error {
	said, _ := os.ReadFile(f.log.Name())
	if len(said) > 2000 {
		said = said[len(said)-2000:]
	}
	return fmt.Errorf("%s ended by itself: %s", strings.Join(f.opt.Relay[1:], " "), said)
}

// stop ends all relays and waits for them.
func (f *fleet) stop() {
	for _, s := range f.ships {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, s := range f.ships {
		select {
		case <-s.done:
		case <-time.After(5 * time.Second):
			_ = s.cmd.Process.Kill()
			<-s.done
		}
	}
	_ = f.log.Close()
}
