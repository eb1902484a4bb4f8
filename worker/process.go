package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill"
)

// A Registry is a database to which processes report their workers, for operators. Its
// methods may be called concurrently.
type Registry interface {
	// ReportWorkers stores the state of a process: every few seconds, and at the end. It
	// returns the instructions of operators: none at the end. An entry that is not reported
	// for a minute counts as that of a dead process.
	ReportWorkers(ctx context.Context, r Report) (Instructions, error)
}

// A Report is the state of the workers of one process.
type Report struct {
	ID    string `json:"id"` // UUID of this start of the process
	Ended bool   `json:"-"`  // the entry is to be removed

	Name        string           `json:"name"` // by which operators stop it; several processes may share one
	Host        string           `json:"host"`
	PID         int              `json:"pid"`
	State       string           `json:"state"` // StateRunning, StatePaused or StateDraining
	Transports  []string         `json:"transports"`
	Paused      []string         `json:"paused"`      // the part of Transports whose workers receive no messages
	Concurrency int              `json:"concurrency"` // handlers at once, of all transports together
	Busy        int              `json:"busy"`        // handlers that run
	Handled     int64            `json:"handled"`     // since its start, duplicates included
	Failed      int64            `json:"failed"`      // attempts, see Failed
	HeapBytes   uint64           `json:"heap_bytes"`
	Running     []RunningMessage `json:"running"` // the longest running ones, at most 10
}

// The states of a Report.
const (
	StateRunning  = "running"
	StatePaused   = "paused"   // all of its transports are
	StateDraining = "draining" // told to stop: it finishes what is in flight
)

// A RunningMessage is a message whose handlers run.
type RunningMessage struct {
	Transport string            `json:"transport"`
	Name      string            `json:"name"`
	ID        waybill.MessageID `json:"id"`
	Handler   string            `json:"handler"` // empty before the first one
	Seconds   float64           `json:"seconds"` // since it was begun, at the time of the report
}

// ErrStopRequested is the cause with which the context of a Process ends when an operator
// asks it to stop.
var ErrStopRequested = errors.New("stopped by operator")

const (
	processReportEvery   = 5 * time.Second
	processReportTimeout = 2 * time.Second
	firstReportEvery     = time.Second // workers wait for its answer
	maxRunningReported   = 10
)

// A Process reports the workers of this process to a Registry, and ends or pauses them when
// an operator asks it to. The workers are those whose Config names it; they receive nothing
// before the first answer of the registry. Without an answer later on, they stay as they are.
type Process struct {
	to   Registry
	log  *slog.Logger
	id   string
	name string
	hint chan struct{} // a worker has begun or ended

	handled, failed atomic.Int64

	mu      sync.Mutex // guards the fields below
	workers []*reported
	paused  pauses
	begun   bool // Context was called
}

// A reported worker is one that is in the reports of its process.
type reported struct {
	*Worker
	active *activeMessages
}

// NewProcess returns a Process that reports to a registry under a name, by which operators
// stop it; empty means host/pid. Nil discards the log.
func NewProcess(to Registry, name string, log *slog.Logger) (*Process, error) {
	if to == nil {
		return nil, errors.New("worker: NewProcess needs a registry")
	}
	if len(name) > maxProcessName {
		return nil, fmt.Errorf("worker: the name of the process has %d bytes, the limit is %d", len(name), maxProcessName)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	id, err := uuid.NewV4()
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	p := &Process{to: to, log: log, id: id.String(), name: cmp.Or(name, identity), hint: make(chan struct{}, 1)}
	p.paused.changed = make(chan struct{})
	return p, nil
}

// maxProcessName bounds the name of a Process.
const maxProcessName = 190

// Context begins to report, and returns a context in which the workers are to run: it ends
// with ErrStopRequested as its cause when an operator asks for that. The caller calls end
// when they have returned, which removes the entry. A process calls Context once. A nil
// Process reports nothing.
func (p *Process) Context(ctx context.Context) (stopping context.Context, end func()) {
	if p == nil {
		return ctx, func() {}
	}
	p.change(func() { p.begun = true })
	stopping, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { p.run(context.WithoutCancel(ctx), stopping, cancel, ended) })
	return stopping, sync.OnceFunc(func() {
		close(ended)
		cancel(nil)
		wg.Wait()
	})
}

// run reports until ended is closed.
func (p *Process) run(ctx, stopping context.Context, cancel context.CancelCauseFunc, ended <-chan struct{}) {
	tick := time.NewTicker(processReportEvery)
	defer tick.Stop()
	drains, failing := stopping.Done(), false
	var again <-chan time.Time
	for {
		select {
		case <-ended:
			_, _ = p.send(ctx, Report{ID: p.id, Ended: true}, &failing) // it logs its error
			return
		case <-drains:
			drains = nil
		case <-p.hint:
		case <-tick.C:
		case <-again:
		}
		again = nil
		told, err := p.send(ctx, p.gather(stopping.Err() != nil), &failing)
		if err != nil {
			if known, _, _ := p.pauseState(""); !known {
				again = time.After(firstReportEvery)
			}
			continue
		}
		p.setPaused(told.Paused)
		if told.Stop {
			cancel(ErrStopRequested)
		}
	}
}

// send reports. An error is no more than logged, once: workers work without reports.
func (p *Process) send(ctx context.Context, r Report, failing *bool) (Instructions, error) {
	ctx, cancel := context.WithTimeout(ctx, processReportTimeout)
	defer cancel()
	told, err := p.to.ReportWorkers(ctx, r)
	if err != nil && !*failing {
		text := "workers not reported: operators neither see, stop nor pause this process until that succeeds"
		if known, _, _ := p.pauseState(""); !known {
			text = "workers not reported: they receive nothing before that succeeds, because their transports may be paused"
		}
		p.log.LogAttrs(ctx, slog.LevelWarn, text, slog.String("name", p.name), slog.Any("err", err))
	}
	*failing = err != nil
	return told, err
}

// gather returns the state of the workers.
func (p *Process) gather(draining bool) Report {
	r := Report{
		ID: p.id, Name: p.name, Host: host, PID: os.Getpid(), State: StateRunning, Transports: []string{}, Paused: []string{},
		Handled: p.handled.Load(), Failed: p.failed.Load(), HeapBytes: heapBytes(), Running: []RunningMessage{},
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		r.Transports = append(r.Transports, w.cfg.Transport)
		if slices.Contains(p.paused.transports, w.cfg.Transport) {
			r.Paused = append(r.Paused, w.cfg.Transport)
		}
		r.Concurrency += w.cfg.Concurrency
		found := w.active.list(w.cfg.Transport)
		r.Busy += len(found)
		r.Running = append(r.Running, found...)
	}
	switch {
	case draining:
		r.State = StateDraining
	case len(r.Paused) > 0 && len(r.Paused) == len(r.Transports):
		r.State = StatePaused
	}
	slices.Sort(r.Transports)
	slices.Sort(r.Paused)
	slices.SortFunc(r.Running, func(a, b RunningMessage) int { return cmp.Compare(b.Seconds, a.Seconds) })
	r.Running = r.Running[:min(len(r.Running), maxRunningReported)]
	return r
}

// add adds a worker to the reports, until forget is called.
func (p *Process) add(w *Worker, active *activeMessages) (forget func(), err error) {
	if p == nil {
		return func() {}, nil
	}
	one := &reported{w, active}
	p.change(func() {
		if !p.begun {
			err = errNoContext
			return
		}
		p.workers = append(p.workers, one)
	})
	return func() {
		p.change(func() { p.workers = slices.DeleteFunc(p.workers, func(w *reported) bool { return w == one }) })
	}, err
}

func (p *Process) change(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn()
	p.report()
}

// report has the next report sent at once.
func (p *Process) report() {
	select {
	case p.hint <- struct{}{}:
	default:
	}
}

// count counts a message that was handled, or an attempt that failed.
func (p *Process) count(err error) {
	switch {
	case p == nil:
	case err == nil:
		p.handled.Add(1)
	case Failed(err):
		p.failed.Add(1)
	}
}

// heapBytes returns the memory of live and dead objects.
func heapBytes() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64()
}
