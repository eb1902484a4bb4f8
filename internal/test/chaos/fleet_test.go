//go:build chaos

package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/test/crashpoint"
)

// A fleet keeps processes running: a dead one is replaced at once, under a new
// name.
type fleet struct {
	t    *testing.T
	role role // common to all members

	mu        sync.Mutex // guards the fields below
	members   []*member
	started   int
	crashed   map[string]int // by point
	losses    []loss
	measuring bool // losses are taken note of
}

// A member is one place in the fleet, with the process that fills it.
type member struct {
	fleet *fleet
	role  string
	index int
	quick bool
	gone  chan struct{} // closed when the place is given up

	mu      sync.Mutex // guards the fields below
	cmd     *exec.Cmd
	name    string
	next    string // the point at which the next process crashes
	armed   string // the point at which this one does
	struck  bool   // we have killed it
	frozen  bool
	leaving bool // it was asked to stop
}

// A loss is a relay that was killed or frozen with keys in flight.
type loss struct {
	relay  string
	frozen bool
	at     int64            // microseconds
	held   map[string]int64 // since when
}

// add starts n processes more of a role.
func (f *fleet) add(role string, n int, quick bool) {
	f.t.Helper()
	for range n {
		m := &member{fleet: f, role: role, index: len(f.of(role)), quick: quick, gone: make(chan struct{})}
		f.mu.Lock()
		f.members = append(f.members, m)
		f.mu.Unlock()
		m.mu.Lock()
		m.start()
		m.mu.Unlock()
		go m.keep(m.cmd)
	}
}

// of returns the members of a role that were not asked to stop.
func (f *fleet) of(role string) []*member {
	f.mu.Lock()
	members := slices.Clone(f.members)
	f.mu.Unlock()
	var found []*member
	for _, m := range members {
		m.mu.Lock()
		if m.role == role && !m.leaving {
			found = append(found, m)
		}
		m.mu.Unlock()
	}
	return found
}

// start starts a process. The caller holds mu.
func (m *member) start() {
	f := m.fleet
	f.mu.Lock()
	f.started++
	m.name = fmt.Sprintf("%s-%d.%d", m.role, m.index, f.started)
	f.mu.Unlock()
	r := f.role
	r.Role, r.Name, r.Even, r.Quick = m.role, m.name, m.index%2 == 0, m.quick
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // there is nothing in it that could not be encoded
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+string(text), crashpoint.Variable+"="+m.next)
	m.armed, m.next, m.struck = strings.Split(m.next, ",")[0], "", false
	log, err := os.Create(filepath.Join(r.Dir, m.name+".log"))
	if err == nil {
		cmd.Stdout, cmd.Stderr = log, log
		err = errors.Join(cmd.Start(), log.Close())
	}
	if err != nil {
		panic(err) // of a machine that has no more processes or files
	}
	m.cmd = cmd
}

// keep replaces the process whenever it dies, until it is asked to stop.
func (m *member) keep(cmd *exec.Cmd) {
	f := m.fleet
	defer close(m.gone)
	for {
		err := cmd.Wait()
		m.mu.Lock()
		status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
		killed := status.Signaled() && status.Signal() == syscall.SIGKILL
		young := status.Signaled() && status.Signal() == syscall.SIGTERM // it was asked to stop before it listened
		switch {
		case killed && !m.struck && m.armed != "":
			f.mu.Lock()
			f.crashed[m.armed]++
			f.mu.Unlock()
			m.lost(false)
		case m.leaving && (err == nil || young), killed && m.struck:
		default:
			text, _ := os.ReadFile(filepath.Join(f.role.Dir, m.name+".log"))
			f.t.Errorf("%s has ended: %v\n%s", m.name, err, text[max(0, len(text)-2500):])
			m.leaving = true
		}
		if m.leaving {
			m.mu.Unlock()
			return
		}
		m.start()
		cmd = m.cmd
		m.mu.Unlock()
	}
}

// lost records the keys in flight of a relay that is killed or frozen. The caller
// holds mu.
func (m *member) lost(frozen bool) {
	if m.role != "relay" {
		return
	}
	f := m.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if keys := held(f.role.Dir, m.name); f.measuring && len(keys) > 0 {
		f.losses = append(f.losses, loss{m.name, frozen, time.Now().UnixMicro(), keys})
	}
}

// measure switches the recording of losses on or off.
func (f *fleet) measure(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.measuring = on
}

// stop freezes the process, and reports whether it could: one that is to crash
// is left alone. With busy it must have keys in flight. The caller holds mu.
func (m *member) stop(busy bool) bool {
	if m.frozen || m.struck || m.leaving || m.armed != "" {
		return false
	}
	_ = m.cmd.Process.Signal(syscall.SIGSTOP)
	m.awaitStop()
	if busy && len(held(m.fleet.role.Dir, m.name)) == 0 {
		_ = m.cmd.Process.Signal(syscall.SIGCONT)
		return false
	}
	return true
}

// kill kills the process with SIGKILL, and reports whether it could. The next one
// crashes at a point if that is not empty.
func (m *member) kill(busy bool, next string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stop(busy) {
		return false
	}
	m.next, m.struck = next, true
	m.lost(false)
	_ = m.cmd.Process.Kill()
	return true
}

// freeze stops the process until thaw is called, which is nil where it could not.
func (m *member) freeze(busy bool) (thaw func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stop(busy) {
		return nil
	}
	m.frozen = true
	m.lost(true)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.frozen = false
		_ = m.cmd.Process.Signal(syscall.SIGCONT)
	}
}

// awaitStop waits until the process is stopped, or has ended.
func (m *member) awaitStop() {
	for {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.cmd.Process.Pid))
		if err != nil || strings.Contains(string(text), ") T ") || strings.Contains(string(text), ") Z ") {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// dismiss has members stop in the orderly way, and waits for it.
func (f *fleet) dismiss(members ...*member) {
	f.t.Helper()
	for _, m := range members {
		m.mu.Lock()
		m.leaving = true
		_ = m.cmd.Process.Signal(syscall.SIGTERM)
		m.mu.Unlock()
	}
	late := time.After(40 * time.Second)
	for _, m := range members {
		select {
		case <-m.gone:
		case <-late:
			f.t.Errorf("%s does not stop", m.name)
			return
		}
	}
}

// end kills all processes.
func (f *fleet) end() {
	f.mu.Lock()
	members := f.members
	f.mu.Unlock()
	for _, m := range members {
		m.mu.Lock()
		m.leaving, m.struck = true, true
		_ = m.cmd.Process.Kill()
		m.mu.Unlock()
		<-m.gone
	}
}

func (f *fleet) crashes() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.crashed)
}
