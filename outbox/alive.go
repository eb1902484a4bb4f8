package outbox

import (
	"fmt"
	"sync"
	"time"
)

// attempts are the batches that the loops of a relay claim, publish or settle.
type attempts struct {
	mu    sync.Mutex
	began map[*time.Time]bool // guarded by mu
}

// begin adds an attempt, until end is called.
func (a *attempts) begin() (end func()) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.began == nil {
		a.began = map[*time.Time]bool{}
	}
	a.began[&now] = true
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.began, &now)
	}
}

// Alive returns an error if a batch of the relay has taken longer than a time, and than a
// relay gives it: a publish deadline each for its claim, the broker and its settling, and 5 s
// more for a late publisher. It is for a watchdog.
func (r *Relay) Alive(within time.Duration) error {
	r.attempts.mu.Lock()
	defer r.attempts.mu.Unlock()
	within = max(within, 3*r.cfg.PublishDeadline+grace)
	for began := range r.attempts.began {
		if took := time.Since(*began); took > within {
			return fmt.Errorf("outbox: a batch of the relay of %s takes %v", r.cfg.Transport, took.Round(time.Millisecond))
		}
	}
	return nil
}
