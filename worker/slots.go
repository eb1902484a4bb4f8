package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Slots bound how many handlers run at once in several workers of a process together. A
// free slot goes to the worker of the highest Config.Priority that waits for one, and among
// equals to the first. They do not interrupt a handler that runs.
type Slots struct {
	mu      sync.Mutex
	free    int           // guarded by mu, as waiting
	waiting []*slotWaiter // highest priority first
}

// A slotWaiter is a message that waits for a slot.
type slotWaiter struct {
	priority int
	granted  chan struct{} // closed with the slot
}

// NewSlots returns n slots.
func NewSlots(n int) (*Slots, error) {
	if n < 1 {
		return nil, errors.New("worker: NewSlots needs one slot or more")
	}
	return &Slots{free: n}, nil
}

// acquire waits for a slot. It reports false if ctx ended first. Nil slots bound nothing.
func (s *Slots) acquire(ctx context.Context, priority int) bool {
	if s == nil {
		return true
	}
	w := s.enqueue(priority)
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
		s.release()
	}
	return false
}

// enqueue adds a waiter, which has its slot at once if one is free.
func (s *Slots) enqueue(priority int) *slotWaiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &slotWaiter{priority: priority, granted: make(chan struct{})}
	if s.free > 0 { // then none waits
		s.free--
		close(w.granted)
		return w
	}
	i := slices.IndexFunc(s.waiting, func(other *slotWaiter) bool { return other.priority < priority })
	if i < 0 {
		i = len(s.waiting)
	}
	s.waiting = slices.Insert(s.waiting, i, w)
	return w
}

// release returns a slot.
func (s *Slots) release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	close(s.waiting[0].granted)
	s.waiting = slices.Delete(s.waiting, 0, 1)
}
