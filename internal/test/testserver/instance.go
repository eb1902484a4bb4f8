package testserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// startTime bounds the start of a server. It is long because the first start on a
// cold and busy machine is.
const startTime = 4 * time.Minute

// An instance is one server with a private directory. It is not safe for
// concurrent use.
type instance struct {
	url, api string
	dir      string
	as       *syscall.Credential
	commands []command // the last one is the server itself
	running  []int     // the processes of commands that were started
	watcher  *watcher
}

// A command becomes one process of an instance.
type command struct {
	path string
	args []string
	env  []string
	quit syscall.Signal // asks for an orderly end
	// answers tells why the process is not usable yet.
	answers func() error
}

// newInstance makes a directory for a server which one of users shall run. Who
// gets it calls remove in the end, also if it never starts.
func newInstance(kind string, users ...string) (*instance, error) {
	as, err := servant(users...)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "waybill-"+kind+"-")
	if err != nil {
		return nil, err
	}
	w, err := startWatcher(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	in := &instance{dir: dir, as: as, watcher: w}
	if err := own(as, dir); err != nil {
		return nil, errors.Join(err, in.remove())
	}
	return in, nil
}

// write puts a file where the server may read it.
func (in *instance) write(name, text string) (string, error) {
	path := filepath.Join(in.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", err
	}
	return path, own(in.as, path)
}

// start returns when the server answers.
func (in *instance) start() error {
	if len(in.running) > 0 {
		return errors.New("the server is started already")
	}
	for _, c := range in.commands {
		if err := in.startOne(c); err != nil {
			return errors.Join(err, in.kill())
		}
	}
	return nil
}

func (in *instance) startOne(c command) error {
	cmd := in.command(c)
	log, err := os.OpenFile(in.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	in.running = append(in.running, cmd.Process.Pid)
	if err := in.watcher.runs(in.running); err != nil {
		return err
	}
	var died error
	err = waitFor(startTime, func() error {
		if reaped(cmd.Process.Pid) {
			in.running = in.running[:len(in.running)-1]
			died = errors.New("it ended at once")
			return nil
		}
		return c.answers()
	})
	if err = errors.Join(died, err); err != nil {
		return fmt.Errorf("start of %s: %w\n%s", c.path, err, in.tail())
	}
	return nil
}

// command makes c ready to start, in a new process group, so that a Ctrl-C does
// not reach it, and in an environment that inherits only PATH.
func (in *instance) command(c command) *exec.Cmd {
	cmd := exec.Command(c.path, c.args...)
	cmd.Dir = in.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + in.dir, "TMPDIR=" + in.dir, "LANG=C.UTF-8"}, c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: in.as}
	return cmd
}

// stop asks the server to end and returns when it has.
func (in *instance) stop() error {
	if len(in.running) == 0 {
		return nil
	}
	last := len(in.running) - 1
	everyone := family(in.running[last:])
	if err := syscall.Kill(in.running[last], in.commands[last].quit); err != nil {
		return err
	}
	err := waitFor(startTime, func() error {
		for _, pid := range everyone {
			if !reaped(pid) && alive(pid) {
				return fmt.Errorf("process %d does not end\n%s", pid, in.tail())
			}
		}
		return nil
	})
	if err == nil {
		in.running = in.running[:last] // its number may be another's by now
	}
	return errors.Join(err, in.kill()) // ends the helper processes too
}

// kill ends all processes of the server at once.
func (in *instance) kill() error {
	err := slay(in.running)
	for _, pid := range in.running {
		// The first thread of a killed process ends before the threads that write to a disk.
		err = errors.Join(err, waitFor(time.Minute, func() error {
			if !reaped(pid) {
				return fmt.Errorf("process %d is still there", pid)
			}
			return nil
		}))
	}
	in.running = nil
	return errors.Join(err, in.watcher.runs(nil))
}

// remove kills the server, if it runs, and leaves nothing behind.
func (in *instance) remove() error {
	return errors.Join(in.kill(), removeAll(in.dir), in.watcher.dismiss())
}

func (in *instance) log() string { return filepath.Join(in.dir, "output.log") }

// tail returns the last lines of the output of the processes.
func (in *instance) tail() string {
	b, err := os.ReadFile(in.log())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return "\t" + strings.Join(lines[max(0, len(lines)-25):], "\n\t")
}

// reaped reports whether the child pid has ended. Polling costs no goroutine,
// which tests that look for leaked ones would find.
func reaped(pid int) bool {
	done, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
	return done == pid || errors.Is(err, syscall.ECHILD)
}

// attempts calls create up to three times, as long as it fails because another
// process took a port between the choice and the start.
func attempts(create func() (*instance, error)) (*instance, error) {
	for n := 1; ; n++ {
		in, err := create()
		if err == nil || n == 3 || !portTaken(err) {
			return in, err
		}
	}
}

func portTaken(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "eaddrinuse") || strings.Contains(text, "address already in use")
}
