package testserver

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

func TestSlayReachesProcessesThatLeftTheGroup(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c", `setsid sh -c 'echo $$; sleep 100 & echo $!; wait' & wait`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	roots := []int{cmd.Process.Pid}
	lines := bufio.NewReader(out)
	var pids []int
	for range 2 {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	if err := slay(roots); err != nil {
		t.Error(err)
	}
	for _, pid := range append(pids, roots...) {
		if alive(pid) {
			t.Errorf("process %d survives", pid)
		}
	}
	_ = cmd.Wait()
}
