package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Each command that runs on notifies systemd; there is no systemd here, but its socket.
func TestCommandsThatRunOnNotifySystemd(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, does string }{
		{"relay", "relaying, 0 published"}, {"consume work --exec true", "consuming, 0 handled"}, {"run relay", "running, 0 handled"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			file := "database: sqlite://./waybill.db\ntransports: { work: { dsn: queue://work }, out: { dsn: \"queue://out?database=sqlite%3A%2F%2F.%2Fwaybill2.db\" } }\noutbox: { to: out }\nmessages: { order.placed: {} }\n"
			if err := os.WriteFile(filepath.Join(dir, "waybill.yaml"), []byte(file), 0o600); err != nil {
				t.Fatal(err)
			}
			waybill := func(args ...string) *exec.Cmd {
				cmd := exec.CommandContext(t.Context(), self, args...)
				cmd.Args[0] = "waybill"
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "NOTIFY_SOCKET="+filepath.Join(dir, "notify"), "WATCHDOG_USEC=400000")
				return cmd
			}
			for _, db := range []string{"waybill.db", "waybill2.db"} {
				if out, err := waybill("schema", "up", "--database", "sqlite://./"+db).CombinedOutput(); err != nil {
					t.Fatalf("schema up: %v\n%s", err, out)
				}
			}
			cmd := waybill(strings.Fields(c.args)...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			await := func(want string) {
				t.Helper()
				_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
				for got := ""; got != want; {
					buf := make([]byte, 500)
					n, err := conn.Read(buf)
					if err != nil {
						t.Fatalf("waited for %q: %v", want, err)
					}
					got = string(buf[:n])
				}
			}
			await("READY=1\nSTATUS=" + c.does)
			for range 3 {
				await("STATUS=" + c.does + "\nWATCHDOG=1")
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			await("STOPPING=1\nSTATUS=stopping: " + c.does)
			if err := cmd.Wait(); err != nil {
				t.Errorf("after SIGTERM: %v", err)
			}
		})
	}
}
