package main

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed php
var phpFiles embed.FS

// symfony is Symfony Messenger with its Doctrine transport and that transport's defaults: so
// many PHP processes send the messages, and as many handle them. Starting them is not timed.
type symfony struct {
	db        *database
	url       string
	keys      int
	processes int
	version   string
	twice     int
}

func (s *symfony) name() string {
	if s.processes == 1 {
		return "symfony messenger, 1 process"
	}
	return fmt.Sprintf("symfony messenger, %d processes", s.processes)
}

func (s *symfony) duplicates() int { return s.twice }

// program returns a command that runs one of the PHP programs, which are written to a
// directory by prepare.
func (s *symfony) program(ctx context.Context, dir, name string, args ...any) *exec.Cmd {
	words := []string{filepath.Join(dir, "php", name)}
	for _, a := range args {
		words = append(words, fmt.Sprint(a))
	}
	cmd := exec.CommandContext(ctx, "php", words...)
	cmd.Env = append(os.Environ(), "PEERS_DATABASE="+s.url, "PEERS_SCHEMA="+s.db.schema)
	cmd.Stderr = &tail{}
	return cmd
}

// unpack writes the PHP programs to a new directory.
func unpack() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "waybill-peers-"); err != nil {
		return "", err
	}
	return dir, os.CopyFS(dir, phpFiles)
}

// check reports what the machine lacks, and notes the version. It makes the table.
func (s *symfony) check(ctx context.Context, args ...any) error {
	if _, err := exec.LookPath("php"); err != nil {
		return errors.New("there is no php on this machine (Debian: php-cli, php-pgsql, php-symfony-doctrine-messenger and php-doctrine-dbal)")
	}
	dir, err := unpack()
	defer func() { _ = os.RemoveAll(dir) }()
	if err != nil {
		return err
	}
	cmd := s.program(ctx, dir, "check.php", args...)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", cmd.Stderr, err)
	}
	s.version = strings.TrimSpace(string(out))
	return nil
}

func (s *symfony) load(ctx context.Context, _ int) error {
	return s.db.exec(ctx, "TRUNCATE messenger_messages")
}

func (s *symfony) relay(ctx context.Context, n int) (_ time.Duration, err error) {
	dir, err := unpack()
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the processes
	defer cancel()
	var producers, workers []*process
	for i := range s.processes {
		producer, err := start(s.program(ctx, dir, "producer.php", i, s.processes, n, s.keys, bodySize))
		if err != nil {
			return 0, err
		}
		worker, err := start(s.program(ctx, dir, "worker.php"))
		if err != nil {
			return 0, err
		}
		producers, workers = append(producers, producer), append(workers, worker)
	}
	begin := time.Now()
	for _, p := range append(workers, producers...) {
		if _, err := io.WriteString(p.in, "go\n"); err != nil {
			return 0, err
		}
	}
	for _, p := range producers {
		if err := p.wait(); err != nil {
			return 0, err
		}
	}
	if err := s.drained(ctx); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	all := 0
	for _, p := range workers {
		handled, err := p.stop()
		if err != nil {
			return 0, err
		}
		all += handled
	}
	if all < n {
		return 0, fmt.Errorf("%d of %d messages were handled", all, n)
	}
	s.twice = all - n
	return took, nil
}

// drained waits until the table is empty. It gives up when nothing has been handled for a
// minute.
func (s *symfony) drained(ctx context.Context) error {
	left, since := -1, time.Now()
	for {
		var n int
		if err := s.db.pool.QueryRow(ctx, "SELECT count(*) FROM messenger_messages").Scan(&n); err != nil {
			return err
		}
		switch {
		case n == 0:
			return nil
		case n != left:
			left, since = n, time.Now()
		case time.Since(since) > stall:
			return fmt.Errorf("%d messages are left, and none was handled for %v", n, stall)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A process is a PHP program that is ready.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start starts a program and waits until it is ready.
func start(cmd *exec.Cmd) (*process, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd, in, bufio.NewReader(out)}
	if line, err := p.out.ReadString('\n'); err != nil || line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("%s did not start: %q", filepath.Base(cmd.Args[1]), line), p.wait())
	}
	return p, nil
}

func (p *process) wait() error {
	if err := p.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(p.Args[1]), err, p.Stderr)
	}
	return nil
}

// stop asks a worker to end, and returns how many messages it has handled.
func (p *process) stop() (handled int, err error) {
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	line, err := p.out.ReadString('\n')
	if err = errors.Join(err, p.wait()); err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line))
}

// tail keeps the first line that a program writes to its standard error.
type tail struct{ bytes.Buffer }

func (t *tail) String() string {
	line, _, _ := strings.Cut(strings.TrimSpace(t.Buffer.String()), "\n")
	return line
}
