// Package sim runs dispatchers, relays, workers, a database and a broker as state
// machines in virtual time, with a crash, a freeze or a delay possible before
// every named step, and checks the outcome. The seed determines the run.
//
// The decisions are those of production code: internal/readpos selects the rows that
// may be published, internal/keyorder the next record and the next delivery.
// The database and the broker are models: of PostgreSQL's or MySQL's locks and
// snapshots, and of RabbitMQ's confirms and redeliveries, as far as waybill
// depends on them.
package sim

import (
	"container/heap"
	"iter"
	"math/rand/v2"
	"strings"
	"time"
)

// A world is one run.
type world struct {
	rng    *rand.Rand
	now    time.Duration
	agenda agenda
	serial int // counts events: events of the same time keep their order

	mutant  string // the planted bug, or empty
	healing bool   // no more faults
	running *thread
	hits    map[string]int // how often a process was killed before a step
	faults  int            // kills, freezes, cuts and restarts
	trace   func(format string, args ...any)

	processes []*process
	db        *database
	broker    *broker
	laws      laws
}

// An event is a function to call at a time.
type event struct {
	at time.Duration
	no int
	do func()
}

type agenda []event

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].no < a[j].no
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(event)) }
func (a *agenda) Pop() any {
	old := *a
	last := old[len(old)-1]
	*a = old[:len(old)-1]
	return last
}

// after schedules do in d.
func (w *world) after(d time.Duration, do func()) {
	w.serial++
	heap.Push(&w.agenda, event{w.now + d, w.serial, do})
}

// run executes events until done or the limit.
func (w *world) run(limit time.Duration, done func() bool) {
	for len(w.agenda) > 0 && w.now < limit && !done() {
		e := heap.Pop(&w.agenda).(event)
		w.now = e.at
		e.do()
	}
}

// between returns a time from low to high, most often near low.
func (w *world) between(low, high time.Duration) time.Duration {
	f := w.rng.Float64()
	return low + time.Duration(f*f*f*float64(high-low))
}

func (w *world) chance(p float64) bool { return w.rng.Float64() < p }

// A process is the unit of a kill or a freeze.
type process struct {
	*world
	name    string
	start   func(p *process) // starts its threads
	threads []*thread
	frozen  time.Duration // until then
	ends    []func()      // called at its end, to cut its connections
	up      bool
}

func (w *world) begin(name string, start func(p *process)) {
	p := &process{world: w, name: name, start: start}
	w.processes = append(w.processes, p)
	p.boot()
}

func (p *process) boot() {
	p.threads, p.ends, p.frozen, p.up = nil, nil, 0, true
	p.start(p)
}

// kill ends the process as kill -9 does, and starts it again some time later. It
// is called by a thread of the process, and does not return.
func (p *process) kill(step string) {
	p.trace("%s is killed before %s", p.name, step)
	p.hits[step]++
	p.faults++
	p.up = false
	for _, end := range p.ends {
		end()
	}
	p.db.gone(p)
	p.stop()
	p.after(p.between(50*time.Millisecond, 3*time.Second), p.boot)
	panic(killed{})
}

// stop ends all threads but the running one.
func (p *process) stop() {
	for _, th := range p.threads {
		if th.dead = true; th != p.running {
			th.stop()
		}
	}
}

// killed is the panic value that unwinds a thread.
type killed struct{}

// A thread is a coroutine of a process. It runs until it waits.
type thread struct {
	*process
	dead  bool
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
}

// thread starts a thread.
func (p *process) thread(body func(th *thread)) {
	th := &thread{process: p}
	th.next, th.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if v := recover(); v != nil {
				if _, ok := v.(killed); !ok {
					panic(v)
				}
			}
		}()
		th.yield = yield
		body(th)
	})
	p.threads = append(p.threads, th)
	p.after(0, th.resume)
}

// resume continues a thread, once its process is not frozen.
func (th *thread) resume() {
	switch {
	case th.dead:
	case th.frozen > th.now:
		th.after(th.frozen-th.now, th.resume)
	default:
		before := th.running
		th.running = th
		th.next()
		th.running = before
	}
}

// wait gives up control until resume.
func (th *thread) wait() {
	if !th.yield(struct{}{}) {
		panic(killed{})
	}
}

func (th *thread) sleep(d time.Duration) {
	th.after(d, th.resume)
	th.wait()
}

// step is a point at which the process may be killed, or freeze.
func (th *thread) step(name string) {
	if th.healing {
		return
	}
	often := 1.0
	if strings.HasPrefix(name, "claim") {
		often = 0.1 // most claims find no rows
	}
	switch {
	case th.chance(often * crashes):
		th.kill(name)
	case th.chance(freezes):
		d := th.between(time.Second, 90*time.Second)
		th.trace("%s freezes for %v before %s", th.name, d, name)
		th.faults++
		th.frozen = th.now + d
		th.broker.silent(th.process, d)
		th.sleep(0)
	}
}

// crashes and freezes are the probabilities that a process is killed, or freezes,
// before a step.
const crashes, freezes = 0.02, 0.002

// request sends a request to a server and waits for the reply. The server serves it
// even if the process is killed meanwhile.
func (th *thread) request(step string, serve func(reply func())) {
	th.step(step)
	th.after(th.between(200*time.Microsecond, 5*time.Millisecond), func() {
		serve(func() { th.after(th.between(100*time.Microsecond, 5*time.Millisecond), th.resume) })
	})
	th.wait()
}
