package schedule_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/schedule"
	"github.com/waybill-go/waybill/waycli/mysql"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/waypg"
)

var length = flag.Duration("schedule.time", 6*time.Second, "how long processes are killed")

// A database is one that processes share.
type database interface {
	admin.Database
	admin.Schedules
	Close() error
}

// idle is how long the transaction of a frozen process holds up the others.
const idle = 2 * time.Second

// A runFunc is the Run of a scheduler whose process freezes at its second tick in a place, once.
// The empty place is none.
type runFunc func(ctx context.Context, freezes place) error

// A place is where a scheduler freezes.
type place string

const (
	behindRows    place = "rows"    // it has read which ticks are due
	inTransaction place = "message" // it has moved the row, and not committed
)

// kinds open the databases, and return the Run of a scheduler.
var kinds = map[string]func(ctx context.Context, dsn string) (database, runFunc){
	"postgres": func(ctx context.Context, dsn string) (database, runFunc) {
		db, err := waypg.Open(ctx, dsn, waypg.Config{IdleTimeout: idle})
		check(err)
		return closing{db}, everySecond(db, db)
	},
	"mariadb": func(ctx context.Context, dsn string) (database, runFunc) {
		db, err := mysql.Open(ctx, config.MustParseDSN(dsn), waymysql.Config{IdleTimeout: idle})
		check(err)
		return db, everySecond(db, db)
	},
}

// closing is a *waypg.DB whose Close may fail.
type closing struct{ *waypg.DB }

func (c closing) Close() error { c.DB.Close(); return nil }

// everySecond returns the Run of a schedule of each second. The tables must be in place when
// it is called.
func everySecond[TX any](db schedule.Store[TX], writer outbox.Writer[TX]) runFunc {
	return func(ctx context.Context, freezes place) error {
		out, err := outbox.New(writer, outbox.Config{})
		check(err)
		timing, err := schedule.Every(time.Second)
		check(err)
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
		sent := 0
		freeze := func(at place) {
			if sent == 1 && at == freezes {
				freezes = ""
				check(syscall.Kill(os.Getpid(), syscall.SIGSTOP))
			}
		}
		s, err := schedule.New(reading[TX]{db, func() { freeze(behindRows) }}, out, schedule.Config{Log: log}, schedule.Schedule{
			Name: "fast", Timing: timing, Missed: schedule.All,
			Message: func(tick time.Time) any {
				freeze(inTransaction)
				time.Sleep(rand.N(10 * time.Millisecond)) // so that kills meet open transactions
				sent++
				return SendReport{tick}
			},
		})
		check(err)
		return s.Run(ctx)
	}
}

// reading calls a function when ticks are due, with their row read.
type reading[TX any] struct {
	schedule.Store[TX]
	due func()
}

func (r reading[TX]) Schedules(ctx context.Context) ([]admin.Schedule, time.Time, error) {
	rows, now, err := r.Store.Schedules(ctx)
	if len(rows) == 1 && !rows[0].NextTick.After(now) {
		r.due()
	}
	return rows, now, err
}

// childOf is the variable by which the test's program becomes a process with a scheduler:
// "KIND DSN", and where it freezes.
const childOf = "WAYBILL_TEST_SCHEDULER"

func TestMain(m *testing.M) {
	var kind, dsn string
	var freezes place
	if n, _ := fmt.Sscan(os.Getenv(childOf), &kind, &dsn, &freezes); n < 2 {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // the test has ended
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	_, run := kinds[kind](ctx, dsn)
	check(run(ctx, freezes))
}

// servers start the databases.
var servers = map[string]func(testing.TB) string{"postgres": testserver.Postgres, "mariadb": testserver.MariaDB}

// A process freezes with a tick, which another one sends. On its return it sends nothing
// twice, and takes its share of the later ticks.
func TestFrozenProcessSendsNothingTwice(t *testing.T) {
	for kind, open := range kinds {
		for _, at := range []place{behindRows, inTransaction} {
			t.Run(kind+" "+string(at), func(t *testing.T) {
				t.Parallel()
				dsn := servers[kind](t)
				db, run := open(t.Context(), dsn)
				defer func() { _ = db.Close() }()
				if _, err := db.SchemaUp(t.Context()); err != nil {
					t.Fatal(err)
				}
				frozen := start(t, kind, dsn, string(at))
				defer frozen.end()
				row := awaitRow(t, db, func(admin.Schedule) bool { return frozen.isFrozen() })
				ctx, stop := context.WithCancel(t.Context())
				other := make(chan error, 1)
				go func() { other <- run(ctx, "") }()
				row = awaitRow(t, db, func(now admin.Schedule) bool { return now.DoneUntil.After(row.DoneUntil.Add(2 * time.Second)) })
				if !frozen.isFrozen() {
					t.Error("the process is not frozen any more")
				}
				frozen.signal(syscall.SIGCONT)
				row = awaitRow(t, db, func(now admin.Schedule) bool { return now.DoneUntil.After(row.DoneUntil.Add(2 * time.Second)) })
				stop()
				if err := <-other; err != nil {
					t.Error(err)
				}
				row = awaitRow(t, db, func(now admin.Schedule) bool { return now.DoneUntil.After(row.DoneUntil.Add(2 * time.Second)) })
				frozen.end()
				row = awaitRow(t, db, func(now admin.Schedule) bool { return !now.DoneUntil.Before(row.DoneUntil) })
				wantTicks(t, db, *row.LastTick, 6*time.Second)
			})
		}
	}
}

// Five processes with a schedule of each second are killed around its ticks, several at a
// time. Each tick is sent, and once, and so is each request of an operator.
func TestKilledProcessesSendEachTickOnce(t *testing.T) {
	for kind, open := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dsn := servers[kind](t)
			db, _ := open(t.Context(), dsn)
			defer func() { _ = db.Close() }()
			if _, err := db.SchemaUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			processes := make([]*process, 5)
			for i := range processes {
				processes[i] = start(t, kind, dsn, "")
				defer processes[i].end()
			}
			first := awaitRow(t, db, func(row admin.Schedule) bool { return row.LastTick != nil })
			end := first.LastTick.Add(*length)
			kills, requests := 0, []time.Time(nil)
			for time.Now().Before(end) {
				if at, added, err := db.TriggerSchedule(t.Context(), "fast"); err != nil {
					t.Error(err)
				} else if added {
					requests = append(requests, at)
				}
				// Processes wake up at each full second.
				time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second + rand.N(25*time.Millisecond))))
				for _, i := range rand.Perm(len(processes))[:1+rand.IntN(4)] {
					processes[i].kill()
					kills++
				}
			}
			last := awaitRow(t, db, func(row admin.Schedule) bool { return !row.DoneUntil.Before(end) && row.RequestedAt == nil })
			for _, p := range processes {
				p.end()
			}
			last = awaitRow(t, db, func(row admin.Schedule) bool { return !row.DoneUntil.Before(last.DoneUntil) })
			wantTicks(t, db, *last.LastTick, *length, requests...)
			if want := int(*length / time.Second); kills < want {
				t.Errorf("%d processes were killed, want %d at least", kills, want)
			}
			if len(requests) < 2 {
				t.Errorf("%d requests, want 2 at least", len(requests))
			}
			t.Logf("%s: %d processes were killed, %d requests", kind, kills, len(requests))
		})
	}
}

// wantTicks fails unless each tick up to the last has one message, for a time at least, and
// each request.
func wantTicks(t *testing.T, db database, last time.Time, length time.Duration, requests ...time.Time) {
	t.Helper()
	all, err := db.Outbox(t.Context(), admin.OutboxQuery{})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[waybill.MessageID]int{}
	for _, m := range all {
		ids[m.ID]++
	}
	for _, at := range requests {
		if found := ids[schedule.RequestID("fast", at)]; found != 1 {
			t.Errorf("the request of %v has %d messages, want 1", at, found)
		}
	}
	for n := range len(all) - len(requests) {
		tick := last.Add(-time.Duration(n) * time.Second)
		if found := ids[schedule.MessageID("fast", tick)]; found != 1 {
			t.Errorf("the tick %v has %d messages, want 1", tick, found)
		}
	}
	if want := int(length/time.Second) + len(requests); len(all) < want || len(ids) != len(all) {
		t.Errorf("%d messages with %d ids, want %d at least", len(all), len(ids), want)
	}
	t.Logf("%d messages, %d ids", len(all), len(ids))
}

// awaitRow waits for a state of the schedule.
func awaitRow(t *testing.T, db database, ok func(admin.Schedule) bool) admin.Schedule {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		rows, _, err := db.Schedules(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) == 1 && ok(rows[0]) {
			return rows[0]
		}
	}
	t.Fatal("the schedule does not get there within a minute")
	return admin.Schedule{}
}

// A process has a scheduler, and is started again when it was killed.
type process struct {
	mu    sync.Mutex
	cmd   *exec.Cmd // guarded by mu; nil after end
	ended chan struct{}
}

func start(t *testing.T, kind, dsn, freezes string) *process {
	p := &process{ended: make(chan struct{})}
	begin := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childOf+"="+kind+" "+dsn+" "+freezes)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe() // it ends with the test
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Error(err)
			return nil
		}
		_ = in
		return cmd
	}
	p.cmd = begin()
	go func() {
		defer close(p.ended)
		for {
			p.mu.Lock()
			cmd := p.cmd
			p.mu.Unlock()
			if cmd == nil {
				return
			}
			err := cmd.Wait()
			p.mu.Lock()
			if p.cmd != nil {
				if cmd.ProcessState.Exited() {
					t.Errorf("a scheduler has ended by itself: %v", err)
				}
				p.cmd = begin()
			}
			p.mu.Unlock()
		}
	}()
	return p
}

// kill kills the process as kill -9 does.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
	}
}

func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Signal(s)
}

func (p *process) isFrozen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	return err == nil && strings.Contains(string(text), ") T ")
}

// end kills the process for good.
func (p *process) end() {
	p.mu.Lock()
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		p.cmd = nil
	}
	p.mu.Unlock()
	<-p.ended
}
