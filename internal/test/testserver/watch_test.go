package testserver

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// victimVariable is set for the process that TestServersDieWithTheirTest kills.
const victimVariable = "WAYBILL_TESTSERVER_VICTIM"

func TestServersDieWithTheirTest(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.Command(self, "-test.run=^TestVictim$")
	victim.Env = append(os.Environ(), victimVariable+"=1")
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	var dir string
	var pids []int
	lines := bufio.NewScanner(out)
	for len(pids) == 0 && lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "server "); ok {
			var pid int
			for _, field := range strings.Fields(rest) {
				if _, err := fmt.Sscan(field, &pid); err == nil {
					pids = append(pids, pid)
				} else {
					dir = field
				}
			}
		}
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait()
	if len(pids) < 5 || dir == "" {
		t.Fatalf("the victim told of the processes %v in %q, want those of a PostgreSQL", pids, dir)
	}
	err = waitFor(20*time.Second, func() error {
		for _, pid := range pids {
			if alive(pid) {
				return fmt.Errorf("process %d survives the test that started it", pid)
			}
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s survives the test that made it: %v", dir, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestVictim waits for its end with a server that cannot end by itself.
func TestVictim(t *testing.T) {
	if os.Getenv(victimVariable) == "" {
		return
	}
	s := StartPostgres(t, nil)
	s.Pause()
	fmt.Println("server", s.in.dir, strings.Trim(fmt.Sprint(family(s.in.running)), "[]"))
	time.Sleep(time.Minute)
}
