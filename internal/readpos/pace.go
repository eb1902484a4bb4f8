package readpos

import (
	"sync"
	"time"
)

// Moving paces a process that moves delayed messages, where others hold the
// dispatch locks of some. The zero value is one that met none. It is safe for
// concurrent use.
type Moving struct {
	mu     sync.Mutex
	after  time.Time // the next look
	waiter time.Time // the next wait for a lock
}

// heldPause is how long messages whose lock was held are left alone.
const heldPause = 20 * time.Millisecond

// Due reports whether it is time to move.
func (m *Moving) Due(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !now.Before(m.after)
}

// Held takes note that messages were left behind, and reports whether to wait for
// one of their locks, which takes so long at the most: a fifth of the time at the
// most is spent so.
func (m *Moving) Held(now time.Time, wait time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.after = now.Add(heldPause)
	if now.Before(m.waiter) {
		return false
	}
	m.waiter = now.Add(5 * wait)
	return true
}
