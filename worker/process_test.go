package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

// registry keeps the reports of one process.
type registry struct {
	mu      sync.Mutex
	reports []worker.Report
	stop    bool
	paused  []string
	hangs   bool
}

func (r *registry) ReportWorkers(ctx context.Context, one worker.Report) (worker.Instructions, error) {
	r.mu.Lock()
	hangs := r.hangs
	r.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return worker.Instructions{Stop: true}, ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, one)
	return worker.Instructions{Stop: r.stop, Paused: r.paused}, nil
}

func (r *registry) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// last describes the last report.
func (r *registry) last() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.reports[len(r.reports)-1]
	if one.Ended {
		return "ended"
	}
	text := fmt.Sprintf("%s %v %d/%d, %d handled, %d failed:", one.State, one.Transports, one.Busy, one.Concurrency, one.Handled, one.Failed)
	var running []string // of those that began at the same time, in any order
	for _, m := range one.Running {
		running = append(running, fmt.Sprintf(" %s %s %s %gs", m.Transport, m.Name, m.Handler, m.Seconds))
	}
	slices.Sort(running)
	return text + strings.Join(running, "")
}

func TestProcessReportsWhatItsWorkersAreDoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newFixture(t), &registry{}
		process, err := worker.NewProcess(r, "billing", nil)
		noError(t, err)
		ctx, end := process.Context(t.Context())
		p.cfg.Process, p.cfg.Concurrency = process, 3
		p.handle(func(_ context.Context, j job) error {
			if j.K == "bad" {
				return errDeclined
			}
			time.Sleep(time.Duration(j.N) * time.Second)
			return nil
		})
		waybill.Handle(p.bus, "then", func(context.Context, job) error { time.Sleep(12 * time.Second); return nil })
		p.send(job{"a", 7}, job{"b", 0}, job{"bad", 0})
		w, err := worker.New(p.bus, p.queue, p.cfg)
		noError(t, err)
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		want := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if diff := cmp.Diff(want, r.last()); diff != "" {
				t.Errorf("the last report (-want +got):\n%s", diff)
			}
		}
		want(5*time.Second, "running [jobs] 3/3, 0 handled, 0 failed: jobs job do 5s jobs job then 5s jobs job then 5s")
		want(10*time.Second, "running [jobs] 1/3, 1 handled, 2 failed: jobs job then 15s")
		if id, name := r.reports[0].ID, r.reports[0].Name; name != "billing" || r.reports[1].ID != id || r.reports[0].HeapBytes == 0 {
			t.Errorf("the first report is %+v", r.reports[0])
		}
		r.set(func() { r.hangs = true }) // the database
		time.Sleep(61 * time.Second)     // not at the time of a report
		r.set(func() { r.hangs, r.stop = false, true })
		p.send(job{"a", 1}, job{"c", 8})
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), worker.ErrStopRequested) {
			t.Errorf("the context of a process that was told to stop ended by %v", context.Cause(ctx))
		}
		want(0, "draining [jobs] 2/3, 2 handled, 5 failed: jobs job do 4s jobs job then 4s")
		noError(t, <-ended)
		end()
		want(0, "ended")
	})
}

func TestProcessWithoutANameIsNamedByHostAndPID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{}
		process, err := worker.NewProcess(r, "", nil)
		noError(t, err)
		_, end := process.Context(t.Context())
		time.Sleep(5 * time.Second)
		end()
		one := r.reports[0]
		if want := fmt.Sprintf("%s/%d", one.Host, one.PID); one.Name != want || one.PID == 0 {
			t.Errorf("the process is named %q, want %q", one.Name, want)
		}
	})
	if _, err := worker.NewProcess(&registry{}, strings.Repeat("x", 191), nil); err == nil {
		t.Error("a name of 191 bytes was accepted")
	}
	if _, err := worker.NewProcess(nil, "", nil); err == nil {
		t.Error("a process without a registry was accepted")
	}
}

// A refusing registry answers at once, with an error.
type refusing struct{ calls int }

func (r *refusing) ReportWorkers(context.Context, worker.Report) (worker.Instructions, error) {
	r.calls++
	time.Sleep(time.Millisecond)
	return worker.Instructions{}, errDeclined
}

func TestReportsThatAreRefusedFromTheStartAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &refusing{}
		process, err := worker.NewProcess(r, "billing", nil)
		noError(t, err)
		_, end := process.Context(t.Context())
		time.Sleep(10 * time.Minute)
		end()
		if r.calls < 100 || r.calls > 750 {
			t.Errorf("%d reports in ten minutes, want one a second at most", r.calls)
		}
	})
}
