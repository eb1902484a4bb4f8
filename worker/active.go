package worker

import (
	"context"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
)

// activeMessages are the messages of one worker whose handlers run.
type activeMessages struct {
	mu sync.Mutex
	of map[*waybill.Delivery]*activeMessage // guarded by mu, and the entries in it

	labels map[string]context.Context // of goroutines, by handler; guarded by mu
}

// An activeMessage is a message whose handlers run.
type activeMessage struct {
	since   time.Time
	handler string // empty before the first one
	slow    bool   // it has been reported
}

// begin adds d. It returns a function to be called with the name of each handler that
// begins, on its goroutine, which it labels.
func (a *activeMessages) begin(transport string, d *waybill.Delivery) (handler func(name string)) {
	m := &activeMessage{since: time.Now()}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of, a.labels = map[*waybill.Delivery]*activeMessage{}, map[string]context.Context{}
	}
	a.of[d] = m
	return func(name string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		m.handler = name
		if a.labels[name] == nil {
			a.labels[name] = labelled(transport, name)
		}
		pprof.SetGoroutineLabels(a.labels[name])
	}
}

// slow returns the messages that run for longer than a time and were not returned before.
func (a *activeMessages) slow(than time.Duration) (found []RunningMessage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for d, m := range a.of {
		if took := time.Since(m.since); took >= than && !m.slow {
			m.slow = true
			found = append(found, RunningMessage{"", d.Record.Name, d.Record.ID, handlerName(m.handler), took.Round(time.Millisecond).Seconds()})
		}
	}
	return found
}

// end removes d, and returns its last handler.
func (a *activeMessages) end(d *waybill.Delivery) (handler string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	handler = a.of[d].handler
	delete(a.of, d)
	return handler
}

// list returns all messages, in no order.
func (a *activeMessages) list(transport string) []RunningMessage {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := make([]RunningMessage, 0, len(a.of))
	for d, m := range a.of {
		found = append(found, RunningMessage{transport, d.Record.Name, d.Record.ID, m.handler, time.Since(m.since).Round(time.Millisecond).Seconds()})
	}
	return found
}
