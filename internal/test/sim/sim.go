package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A Verdict is the result of one seed.
type Verdict struct {
	Broken     string         // the first violation of a law; empty if there was none
	Committed  int            // messages
	Duplicates int            // messages that the broker stored more than once
	Faults     int            // kills, freezes, cuts and restarts
	Hits       map[string]int // how often a process was killed before each step
	Took       time.Duration  // of virtual time
}

const (
	troubled = 60 * time.Second // how long faults are injected
	limit    = 20 * time.Minute // a message without an effect by then is lost
)

// Run runs one seed, with a bug planted if mutant names one. Every fifth seed has
// no faults but refusals. A trace that is not nil is called with a line for each event.
func Run(seed uint64, mutant string, trace func(line string)) Verdict {
	w := &world{rng: rand.New(rand.NewPCG(seed, 0)), mutant: mutant, hits: map[string]int{}, trace: func(string, ...any) {}}
	if trace != nil {
		w.trace = func(format string, args ...any) { trace(fmt.Sprintf("%12v  ", w.now) + fmt.Sprintf(format, args...)) }
	}
	w.laws = laws{store: map[*message]int{}, done: map[*message]int{}, dispatchers: 3}
	w.db = &database{world: w, blocked: map[int]*blocked{}, inbox: map[int]*entry{}}
	w.broker = &broker{world: w, refusing: map[int]time.Duration{}}
	for i := range w.laws.dispatchers {
		w.dispatcher(fmt.Sprint("dispatcher ", i), 8)
	}
	for i := range 2 {
		w.relay(fmt.Sprint("relay ", i))
		w.worker(fmt.Sprint("worker ", i))
	}
	w.operator()
	w.healing = seed%5 == 0
	w.trouble()
	w.after(troubled, func() { w.healing = true })
	defer func() {
		for _, p := range w.processes {
			p.stop()
		}
	}()
	w.run(limit, func() bool {
		return w.laws.broken != "" || w.laws.dispatchers == 0 && w.now > troubled && w.laws.pending() == 0 && len(w.broker.queue)+len(w.db.retries)+len(w.db.letters) == 0
	})
	if n := w.laws.pending(); n > 0 {
		w.laws.breaks("lost: %d of %d committed messages have had no effect after %v", n, len(w.laws.commits), w.now)
	}
	if a, b, c := len(w.broker.queue), len(w.db.retries), len(w.db.letters); w.laws.broken == "" && a+b+c > 0 {
		w.laws.breaks("left behind: %d messages at the broker, %d in the retry queue, %d dead letters", a, b, c)
	}
	if w.laws.duplicates > w.faults*batch {
		w.laws.breaks("duplicates: %d with %d faults", w.laws.duplicates, w.faults)
	}
	return Verdict{w.laws.broken, len(w.laws.commits), w.laws.duplicates, w.faults, w.hits, w.now}
}

// trouble schedules the refusals and the faults of servers and connections.
func (w *world) trouble() {
	refuse := func(from, to int) { // the broker refuses some messages of a key for a while
		w.after(w.between(0, troubled), func() { w.broker.refusing[from+w.rng.IntN(to-from)] = w.now + w.between(0, 10*time.Second) })
	}
	for range 4 {
		refuse(0, blocking)
		refuse(blocking, keys)
		refuse(blocking, keys)
	}
	w.after(w.between(0, troubled), func() { w.broker.unbound = w.now + w.between(0, 3*time.Second) })
	if w.healing {
		return
	}
	for range 3 {
		w.after(w.between(0, troubled), func() {
			w.faults++
			if links := w.broker.links; len(links) > 0 {
				w.trace("a connection is cut")
				links[w.rng.IntN(len(links))].cut()
			}
		})
	}
	w.after(w.between(0, 2*troubled), func() { w.faults++; w.broker.restart() })
	w.after(w.between(0, 2*troubled), func() { w.faults++; w.db.restart() })
}
