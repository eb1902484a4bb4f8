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
	n    int
	mu   sync.Mutex      // guards the fields below, and the shares
	free int             // slots without a handler
	wait []*slotShare    // with messages that wait
	now  map[int]float64 // by priority: slotShare.next of the last message that has begun
}

// A slotShare is the part that one worker has in Slots.
type slotShare struct {
	priority, weight int
	most             int     // slots at once
	running          int     // slots that it has
	next             float64 // how many messages of weight 1 it has begun: the least is the next

	waiting []chan struct{} // of its messages, in the order of arrival; each is closed with its slot
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
	granted := s.enqueue(share)
	select {
	case <-granted:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(share.waiting, granted)
	if i >= 0 {
		s.remove(share, i)
	}
	s.mu.Unlock()
	if i < 0 { // it was granted meanwhile
		s.release(share)
	}
	return false
}

// enqueue adds a message, which has its slot at once if there is one for it.
func (s *Slots) enqueue(share *slotShare) (granted chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	granted = make(chan struct{})
	share.next = max(share.next, s.now[share.priority])
	if share.waiting = append(share.waiting, granted); len(share.waiting) == 1 {
		s.wait = append(s.wait, share)
	}
	s.grant()
	return granted
}

// remove takes out the i-th message of a share.
func (s *Slots) remove(share *slotShare, i int) {
	if share.waiting = slices.Delete(share.waiting, i, i+1); len(share.waiting) == 0 {
		s.wait = slices.DeleteFunc(s.wait, func(other *slotShare) bool { return other == share })
	}
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
		share := s.first()
		if share == nil {
			return
		}
		s.free--
		share.running++
		s.now[share.priority] = share.next
		share.next += 1 / float64(share.weight)
		close(share.waiting[0])
		s.remove(share, 0)
	}
}

// first returns the share that has the next free slot, or nil. It looks at each worker, not at each
// message: as many of every worker may wait as there are slots.
func (s *Slots) first() (found *slotShare) {
	for _, share := range s.wait {
		if share.running < share.most && (found == nil || share.before(found)) {
			found = share
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
