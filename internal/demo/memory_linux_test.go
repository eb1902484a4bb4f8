package demo_test

import (
	"os/exec"
	"syscall"
	"testing"
)

// The peak is read from Linux's rusage, which counts in KiB.
func TestRelayMemoryDoesNotGrowWithTheBacklog(t *testing.T) {
	peak := func(backlog int) (mib int64) {
		s := newSite(t)
		const each = 5000
		for from := 0; from < backlog; from += each {
			s.out(from, min(each, backlog-from))
		}
		cmd := exec.CommandContext(t.Context(), binary, "relay", "--drain", "--config", s.config)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("relay: %v\n%s", err, out)
		}
		if n := s.arrived(t); n != backlog {
			t.Fatalf("%d of %d messages arrived", n, backlog)
		}
		return cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss >> 10
	}
	small, large := peak(1_000), peak(100_000)
	t.Logf("peak memory of the relay process: %d MiB with 1000 pending messages, %d MiB with 100000", small, large)
	if large >= 64 {
		t.Errorf("peak is %d MiB, want < 64", large)
	}
}
