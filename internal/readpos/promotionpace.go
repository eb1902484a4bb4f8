package readpos

import (
	"sync"
	"time"
)

// PromotionPace paces the promotion of delayed messages while other sessions hold dispatch
// locks of some. The zero value has met no such lock. It is safe for concurrent use.
type PromotionPace struct {
	mu     sync.Mutex
	after  time.Time // earliest next promotion
	waiter time.Time // earliest next wait for a lock
}

// heldPause is the delay of the next promotion after one that met held locks.
const heldPause = 20 * time.Millisecond

// Due reports whether a promotion is due.
func (m *PromotionPace) Due(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !now.Before(m.after)
}

// Held records that messages were left because their locks were held, and reports
// whether to wait up to wait for one of the locks. At most a fifth of the time is
// spent waiting.
func (m *PromotionPace) Held(now time.Time, wait time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.after = now.Add(heldPause)
	if now.Before(m.waiter) {
		return false
	}
	m.waiter = now.Add(5 * wait)
	return true
}
