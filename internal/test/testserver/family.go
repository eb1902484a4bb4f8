package testserver

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// freeze stops the processes roots and all their descendants, and returns them.
// A stopped process does not fork, so the list is complete.
func freeze(roots []int) []int {
	var stopped []int
	for {
		fresh := slices.DeleteFunc(family(roots), func(pid int) bool { return slices.Contains(stopped, pid) })
		if len(fresh) == 0 {
			return stopped
		}
		for _, pid := range fresh {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
		}
		stopped = append(stopped, fresh...)
	}
}

// thaw lets the processes roots and all their descendants run again.
func thaw(roots []int) {
	for _, pid := range family(roots) {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

// slay kills the processes roots and all their descendants and returns when
// they are gone. Process groups would not do: the processes of PostgreSQL and
// the helpers of the Erlang VM leave theirs. They are stopped first, so that no
// orphan escapes while its parent dies.
func slay(roots []int) error {
	victims := freeze(roots)
	for _, pid := range victims {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return waitFor(time.Minute, func() error {
		for _, pid := range victims {
			if alive(pid) {
				return fmt.Errorf("process %d survives SIGKILL", pid)
			}
		}
		return nil
	})
}

// family returns those of the processes roots that are alive, and all their
// descendants.
func family(roots []int) []int {
	children := map[int][]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if parent, ok := parentOf(pid); ok {
				children[parent] = append(children[parent], pid)
			}
		}
	}
	var found []int
	for _, pid := range roots {
		if alive(pid) {
			found = append(found, pid)
		}
	}
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found
}

func alive(pid int) bool {
	_, ok := parentOf(pid)
	return ok
}

// parentOf returns the parent of a process that is alive; a zombie is not.
func parentOf(pid int) (int, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// pid (name) state parent ..., and the name may hold anything.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 2 || bytes.ContainsAny(fields[0], "ZX") {
		return 0, false
	}
	parent, err := strconv.Atoi(string(fields[1]))
	return parent, err == nil
}

// waitFor calls done until it returns nil, and gives its last error when that
// takes longer than limit.
func waitFor(limit time.Duration, done func() error) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		err := done()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
