package worker

import (
	"sync"
	"time"

	"github.com/waybill-go/waybill"
)

// activeMessages are the messages of one worker whose handlers run.
type activeMessages struct {
	mu sync.Mutex
	of map[*waybill.Delivery]*activeMessage // guarded by mu, and the entries in it
}

// An activeMessage is a message whose handlers run.
type activeMessage struct {
	since   time.Time
	handler string // empty before the first one
}

// begin adds d. It returns a function to be called with the name of each handler that begins.
func (a *activeMessages) begin(d *waybill.Delivery) (handler func(name string)) {
	m := &activeMessage{since: time.Now()}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of = map[*waybill.Delivery]*activeMessage{}
	}
	a.of[d] = m
	return func(name string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		m.handler = name
	}
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
