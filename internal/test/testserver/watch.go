package testserver

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// watchedDir names the directory of a server to the process that watches it.
const watchedDir = "WAYBILL_TESTSERVER_WATCH"

// A process that was killed removes nothing, so a second one does it: this
// executable, started again with watchedDir set, never gets to main.
func init() {
	if dir := os.Getenv(watchedDir); dir != "" {
		watch(dir, os.Stdin)
		os.Exit(0)
	}
}

// A watcher is a process that ends a server, and removes its directory, when
// the process that started both is gone.
type watcher struct {
	cmd  *exec.Cmd
	tell io.WriteCloser // closed by the kernel when this process dies
}

const enough = "end"

func startWatcher(dir string) (*watcher, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), watchedDir+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is not for it
	tell, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("watcher: %w", err)
	}
	return &watcher{cmd: cmd, tell: tell}, nil
}

// runs tells which processes are to be ended.
func (w *watcher) runs(pids []int) error {
	_, err := fmt.Fprintln(w.tell, strings.Trim(fmt.Sprint(pids), "[]"))
	return err
}

// dismiss ends the watcher, who leaves everything as it is.
func (w *watcher) dismiss() error {
	_, _ = fmt.Fprintln(w.tell, enough)
	_ = w.tell.Close()
	return w.cmd.Wait()
}

// watch reads the latest processes from r. If that ends without the word, so
// did they who would have cleaned up.
func watch(dir string, r io.Reader) {
	var pids []int
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if lines.Text() == enough {
			return
		}
		pids = pids[:0]
		for field := range strings.FieldsSeq(lines.Text()) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	_ = slay(pids)
	_ = removeAll(dir)
}
