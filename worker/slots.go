package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Slots bound how many handlers run at once in several workers of a process together. A free
// slot goes to the worker of the highest Config.Priority that has a message, however long
// others wait. Of workers with the same priority that have messages all the time, each begins
// a share of them by Config.Weight; one that had none meanwhile does not make up for it. Slots
// do not interrupt a handler that runs.
type Slots struct {
	n       int
	mu      sync.Mutex      // guards the fields below, and the shares
	free    int             // slots without a handler
	waiting []*slotWaiter   // in the order of arrival
	now     map[int]float64 // by priority: slotShare.next of the last message that has begun
}

// A slotShare is the part that one worker has in Slots.
type slotShare struct {
	priority, weight int
	most             int     // slots at once
	running          int     // slots that it has
	next             float64 // how many messages of weight 1 it has begun: the least is the next
}

// A slotWaiter is a message that waits for a slot.
type slotWaiter struct {
	share   *slotShare
	granted chan struct{} // closed with the slot
}

// NewSlots returns n slots.
func NewSlots(n int) (*Slots, error) {
	if n < 1 {
		return nil, errors.New("worker: NewSlots needs one slot or more")
	}
	return &Slots{n: n, free: n, now: map[int]float64{}}, nil
}

// ahead returns how many messages of a worker wait besides its running handlers: enough for
// all slots, because slots that become free at one time would go to other workers. Nil slots
// bound nothing.
func (s *Slots) ahead() int {
	if s == nil {
		return 0
	}
	return s.n
}

// acquire waits for a slot. It reports false if ctx ended first.
func (s *Slots) acquire(ctx context.Context, share *slotShare) bool {
	if s == nil {
		return true
	}
	w := s.enqueue(share)
	select {
	case <-w.granted:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(s.waiting, w)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 { // it was granted meanwhile
		s.release(share)
	}
	return false
}

// enqueue adds a waiter, which has its slot at once if there is one for it.
func (s *Slots) enqueue(share *slotShare) *slotWaiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &slotWaiter{share: share, granted: make(chan struct{})}
	share.next = max(share.next, s.now[share.priority])
	s.waiting = append(s.waiting, w)
	s.grant()
	return w
}

// release returns a slot.
func (s *Slots) release(share *slotShare) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	share.running--
	s.grant()
}

// grant gives the free slots away.
func (s *Slots) grant() {
	for s.free > 0 {
		i := s.first()
		if i < 0 {
			return
		}
		w := s.waiting[i]
		s.waiting = slices.Delete(s.waiting, i, i+1)
		s.free--
		w.share.running++
		s.now[w.share.priority] = w.share.next
		w.share.next += 1 / float64(w.share.weight)
		close(w.granted)
	}
}

// first returns the index of the waiter that has the next free slot, or -1.
func (s *Slots) first() int {
	found := -1
	for i, w := range s.waiting {
		if w.share.running < w.share.most && (found < 0 || w.share.before(s.waiting[found].share)) {
			found = i
		}
	}
	return found
}

func (s *slotShare) before(other *slotShare) bool {
	if s.priority != other.priority {
		return s.priority > other.priority
	}
	return s.next < other.next
}
