package waycli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// A systemd is the notification socket of a service of type notify: sd_notify(3). Without
// one it is nil.
type systemd struct {
	conn     *net.UnixConn
	watchdog time.Duration // after so long without a word the service is killed; zero is never
}

// statusEvery is how often systemd is told what the process has done.
const statusEvery = 5 * time.Second

func openSystemd() (*systemd, error) {
	socket := os.Getenv("NOTIFY_SOCKET") // @ begins an abstract one, for package net, too
	if socket == "" {
		return nil, nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	d := &systemd{conn: conn}
	if pid := os.Getenv("WATCHDOG_PID"); pid == "" || pid == strconv.Itoa(os.Getpid()) {
		usec, _ := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
		d.watchdog = time.Duration(max(usec, 0)) * time.Microsecond
	}
	return d, nil
}

// notify tells systemd that the process is ready, how far it is and, when ctx ends, that it
// stops; and with a watchdog, while all loops are alive, that it works. Stop is to be called
// when they have returned.
func (d *systemd) notify(ctx context.Context, log *slog.Logger, alive func(within time.Duration) error, status func() string) (stop func()) {
	every := statusEvery
	if d.watchdog > 0 {
		every = min(every, d.watchdog/2)
	}
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		d.send("READY=1\nSTATUS=" + status())
		stopping := ctx.Done()
		for {
			select {
			case <-ended:
				if stopping != nil { // before this goroutine saw the end of ctx, or without one
					d.send("STOPPING=1\nSTATUS=stopping: " + status())
				}
				_ = d.conn.Close()
				return
			case <-stopping:
				stopping = nil
				d.send("STOPPING=1\nSTATUS=stopping: " + status())
				continue
			case <-tick.C:
			}
			state := "STATUS=" + status()
			if stopping == nil {
				state = "STATUS=stopping: " + status()
			}
			if d.watchdog > 0 {
				if err := alive(d.watchdog / 2); err != nil {
					log.LogAttrs(ctx, slog.LevelError, "the watchdog of systemd is not answered", slog.Any("err", err))
				} else {
					state += "\nWATCHDOG=1"
				}
			}
			d.send(state)
		}
	})
	return func() { close(ended); wg.Wait() }
}

// send sends a state. What systemd does not hear it finds out.
func (d *systemd) send(state string) { _, _ = d.conn.Write([]byte(state)) }

// notifySystemd notifies systemd, where it has started this process, until stop is called.
func (s *session) notifySystemd(ctx context.Context, p progress) (stop func()) {
	d, err := openSystemd()
	if err != nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "systemd is not notified", slog.Any("err", err))
	}
	if d == nil {
		return func() {}
	}
	return d.notify(ctx, s.log, s.alive, func() string { return fmt.Sprintf("%s, %s %s", p.message, count(p.done()), p.verb) })
}

// alive returns an error of a relay or worker that has not moved for a time.
func (s *session) alive(within time.Duration) error {
	for _, loop := range s.loops {
		if err := loop(within); err != nil {
			return err
		}
	}
	return nil
}
