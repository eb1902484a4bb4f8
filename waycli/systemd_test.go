package waycli

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// listenAsSystemd makes the socket that the environment names.
func listenAsSystemd(t *testing.T) *net.UnixConn {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	return conn
}

// The socket is real, and so is the time, of which there is little.
func TestSystemdHearsOfStartProgressAndStop(t *testing.T) {
	conn := listenAsSystemd(t)
	t.Setenv("WATCHDOG_USEC", "40000")
	d, err := openSystemd()
	if err != nil || d.watchdog != 40*time.Millisecond {
		t.Fatalf("openSystemd = %+v, %v", d, err)
	}
	next := func() string {
		buf := make([]byte, 500)
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(buf[:n]), "\n", " ")
	}
	await := func(want string) {
		t.Helper()
		for n := 0; next() != want; n++ {
			if n == 1000 {
				t.Fatalf("none of 1000 states is %q", want)
			}
		}
	}
	var hangs atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	stop := d.notify(ctx, slog.New(slog.DiscardHandler), func(time.Duration) error {
		if hangs.Load() {
			return errors.New("hangs")
		}
		return nil
	}, func() string { return "relaying, 7 published" })
	if got := next(); got != "READY=1 STATUS=relaying, 7 published" {
		t.Errorf("the first state is %q", got)
	}
	await("STATUS=relaying, 7 published WATCHDOG=1")
	hangs.Store(true)
	await("STATUS=relaying, 7 published")
	if got := next(); got != "STATUS=relaying, 7 published" {
		t.Errorf("while a loop hangs the state is %q", got)
	}
	cancel()
	await("STOPPING=1 STATUS=stopping: relaying, 7 published")
	stop()
}

// Loops that return at once may do so before the goroutine of the socket knows of the end.
func TestSystemdHearsOfAStopThatTakesNoTime(t *testing.T) {
	conn := listenAsSystemd(t)
	for range 100 {
		d, err := openSystemd()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stop := d.notify(ctx, slog.New(slog.DiscardHandler), func(time.Duration) error { return nil }, func() string { return "relaying" })
		cancel()
		stop()
		for _, want := range []string{"READY=1\nSTATUS=relaying", "STOPPING=1\nSTATUS=stopping: relaying"} {
			buf := make([]byte, 500)
			_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
			if n, err := conn.Read(buf); err != nil || string(buf[:n]) != want {
				t.Fatalf("%q was sent, %v, want %q", buf[:n], err, want)
			}
		}
	}
}

func TestWithoutSystemdNothingIsSent(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if d, err := openSystemd(); d != nil || err != nil {
		t.Errorf("openSystemd = %v, %v", d, err)
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	if d, err := openSystemd(); d != nil || err == nil {
		t.Errorf("openSystemd of a socket that is gone = %v, %v", d, err)
	}
}
