//go:build unix

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Four workers get a build with a changed message, by the script, while orders come in.
func TestRollingRestart(t *testing.T) {
	f := newFixture(t)
	installed := filepath.Join(t.TempDir(), "shop")
	copyFile(t, programs["v1"], installed)
	names := []string{"shop-1", "shop-2", "shop-3", "shop-4"}
	old := f.start("v1", "run", "http", "relay")
	orders := f.load()
	orders.atLeast(20) // they wait: no worker runs yet

	exit, said := f.roll("v2only", installed, names...)
	if exit != 7 || !strings.Contains(said, "order.confirm ") || !strings.Contains(said, "unknown name") {
		t.Fatalf("a build that reads no old messages: exit code %d, want 7 and the name order.confirm in\n%s", exit, said)
	}
	if got := versionOf(t, installed); got != "v1" {
		t.Fatalf("the refused build is installed: %s", got)
	}

	var fleet []*supervised
	for _, name := range names {
		fleet = append(fleet, f.supervise(installed, "run", "workers", "--name", name))
	}
	f.eventually("all workers are listed", func() bool {
		return strings.Count(f.run(0, "v1", "workers", "list", "--json"), `"name"`) >= len(names)
	})
	if exit, said := f.roll("v2", installed, names...); exit != 0 {
		t.Fatalf("exit code %d:\n%s", exit, said)
	}
	orders.atLeast(50) // of the old build, for workers of the new one
	old.stop()
	f.start("v2", "run", "http", "relay")
	orders.atLeast(50)
	placed := orders.end()

	ch := f.channel()
	f.eventually("every order is confirmed", func() bool { return f.number("SELECT count(DISTINCT order_id) FROM confirmations") == placed })
	f.settled(ch)
	handled, duplicates := 0, 0
	for _, s := range fleet {
		results := s.end()
		if len(results) != 2 || results[0].Reason != "stopped by operator" {
			t.Errorf("%s has run as %+v, want two processes, the first stopped by an operator", s.args, results)
		}
		for _, r := range results {
			handled, duplicates = handled+r.Handled, duplicates+r.Duplicates
			if r.Failed > 0 || r.Handled == 0 {
				t.Errorf("%s: %+v, want no failure, and messages of every process", s.args, r)
			}
		}
	}
	f.checkEffects(placed, handled, duplicates)
	if s := f.run(0, "v2", "failed", "list"); strings.Contains(s, "order") || strings.Contains(s, "stock") {
		t.Errorf("dead letters: %s", s)
	}
	t.Logf("%d orders during a rolling restart of %d workers: %d messages handled, %d duplicates, no failure", placed, len(names), handled, duplicates)
}

// checkEffects compares the tables with so many orders of one piece each.
func (f *fixture) checkEffects(placed, handled, duplicates int) {
	f.t.Helper()
	if n := f.number("SELECT count(*) FROM confirmations"); n != placed {
		f.t.Errorf("%d confirmations of %d orders", n, placed)
	}
	if left := f.number("SELECT available FROM products WHERE id = 1"); left != 1_000_000-placed {
		f.t.Errorf("%d pieces were taken, want %d", 1_000_000-left, placed)
	}
	if handled != 2*placed || duplicates != 0 {
		f.t.Errorf("%d messages handled, %d duplicates, want each of %d once", handled, duplicates, 2*placed)
	}
	if f.number("SELECT count(*) FROM confirmations WHERE language = 'de'") == 0 || f.number("SELECT count(*) FROM confirmations WHERE language = 'en'") == 0 {
		f.t.Error("want confirmations of both versions")
	}
}

// roll runs the script, and returns its exit code and output.
func (f *fixture) roll(version, installed string, names ...string) (exit int, said string) {
	f.t.Helper()
	cmd := exec.Command("./rolling-restart.sh", append([]string{programs[version], installed}, names...)...)
	cmd.Env = f.environment()
	out, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(out)
}

// orders are posted to the shop at a steady pace, also while it restarts.
type orders struct {
	f      *fixture
	placed atomic.Int64
	stop   context.CancelFunc
	ended  chan struct{}
}

func (f *fixture) load() *orders {
	ctx, stop := context.WithCancel(f.t.Context())
	o := &orders{f: f, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(o.ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ; ctx.Err() == nil; <-tick.C {
			order := orderOf(int(o.placed.Load())+1, 1)
			order.ShipTo.Country = "Germany"
			// A shop that stops may have written the order without an answer: then it is a conflict.
			if status := f.post("/orders", order); status != http.StatusAccepted && status != http.StatusConflict {
				f.t.Errorf("order %d: status %d", order.OrderID, status)
				return
			}
			o.placed.Add(1)
		}
	}()
	f.t.Cleanup(func() { o.end() })
	return o
}

// atLeast waits for n further orders.
func (o *orders) atLeast(n int64) {
	o.f.t.Helper()
	until := o.placed.Load() + n
	o.f.eventually(fmt.Sprint(until, " orders"), func() bool { return o.placed.Load() >= until })
}

// end ends the load and returns how many orders there are.
func (o *orders) end() int {
	o.stop()
	<-o.ended
	return int(o.placed.Load())
}

// supervised is a process that is started again when it ends, as a supervisor does.
type supervised struct {
	f    *fixture
	args string

	mu      sync.Mutex
	now     *process
	ending  bool
	results []result
	ended   chan struct{}
}

func (f *fixture) supervise(program string, args ...string) *supervised {
	s := &supervised{f: f, args: strings.Join(args, " "), ended: make(chan struct{}), now: f.startProgram(program, args...)}
	go func() {
		defer close(s.ended)
		for {
			s.results = append(s.results, s.now.wait())
			s.mu.Lock()
			ending := s.ending
			if !ending {
				s.now = f.startProgram(program, args...)
			}
			s.mu.Unlock()
			if ending {
				return
			}
		}
	}()
	return s
}

// end stops the process for good, and returns the results of all that ran.
func (s *supervised) end() []result {
	s.f.t.Helper()
	s.mu.Lock()
	s.ending = true
	err := s.now.cmd.Process.Signal(os.Interrupt)
	s.mu.Unlock()
	s.f.try(err)
	<-s.ended
	return s.results
}

func versionOf(t *testing.T, program string) string {
	t.Helper()
	out, err := exec.Command(program, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, version, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	version, _, _ = strings.Cut(version, " ")
	return version
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
}
