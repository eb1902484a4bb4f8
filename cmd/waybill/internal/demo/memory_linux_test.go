package demo_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The peak is that of /proc while the process runs. The one of rusage would be
// ours, if that is greater: a process begins as a copy of its parent.
func TestRelayMemoryDoesNotGrowWithTheBacklog(t *testing.T) {
	peak := func(backlog int) (mib int64) {
		s := newDeployment(t)
		const each = 5000
		for from := 0; from < backlog; from += each {
			s.out(from, min(each, backlog-from))
		}
		cmd := exec.CommandContext(t.Context(), binary, "relay", "--drain", "--config", s.config)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for running := true; running; {
			select {
			case err := <-ended:
				if running = false; err != nil {
					t.Fatalf("relay: %v\n%s", err, &out)
				}
			case <-time.After(time.Millisecond):
				mib = max(mib, peakOf(cmd.Process.Pid))
			}
		}
		if n := s.arrived(t); n != backlog {
			t.Fatalf("%d of %d messages arrived", n, backlog)
		}
		return mib
	}
	small, large := peak(1_000), peak(100_000)
	t.Logf("peak memory of the relay process: %d MiB with 1000 pending messages, %d MiB with 100000", small, large)
	if large >= 64 || large == 0 {
		t.Errorf("peak is %d MiB, want < 64", large)
	}
}

// peakOf returns the peak memory of a process in MiB, 0 when it has ended.
func peakOf(pid int) (mib int64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &mib); err == nil {
			return mib >> 10
		}
	}
	return 0
}
