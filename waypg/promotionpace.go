package waypg

import (
	"sync"
	"time"
)

// promotionPace paces the promotion of delayed messages while other sessions hold dispatch
// locks of some. The zero value has met no such lock. It is safe for concurrent use.
type promotionPace struct {
	mu     sync.Mutex
	after  time.Time // earliest next promotion
	waiter time.Time // earliest next wait for a lock
}

// heldPause is the delay of the next promotion after one that met held locks.
const heldPause = 20 * time.Millisecond

// isDue reports whether a promotion is due.
func (p *promotionPace) isDue(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !now.Before(p.after)
}

// heldUp records that messages were left because their locks were held, and reports
// whether to wait up to wait for one of the locks. At most a fifth of the time is
// spent waiting.
func (p *promotionPace) heldUp(now time.Time, wait time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.after = now.Add(heldPause)
	if now.Before(p.waiter) {
		return false
	}
	p.waiter = now.Add(5 * wait)
	return true
}
