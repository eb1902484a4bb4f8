package outbox

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/chain"
)

// suspects are the rows and routes that may be at fault. They are shared by the
// loops of a relay, and lost with the process at no harm.
type suspects struct {
	mu        sync.Mutex
	cuts      map[waybill.MessageID]cuts
	published int            // rows of the loops that share a connection
	nowhere   map[string]int // by message name: records in a row without a destination
}

// cuts are the lost connections with a row in flight.
type cuts struct {
	n  int
	at int // rows that had been published at the first
}

func newSuspects() *suspects {
	return &suspects{cuts: map[waybill.MessageID]cuts{}, nowhere: map[string]int{}}
}

const (
	suspectAfter = 2      // lost connections, after which a row is tried apart
	convictAfter = 4      // lost connections, after which it is to blame if other rows get through
	routeAfter   = 3      // records of one name without a destination, after which the route is blocked
	rememberCuts = 10_000 // rows; far more than a window
)

// observe notes a batch that shared its connection, and returns the heads of keys that
// were in flight at lost connections too often: they are to be tried apart.
func (s *suspects) observe(b *batch) (apart []Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cuts) > rememberCuts {
		clear(s.cuts)
	}
	heads := b.heads()
	for i, row := range b.rows {
		state, err := b.Outcome(i)
		var cut *CutError
		switch {
		case state == chain.Published:
			s.published++
			delete(s.cuts, row.Record.ID)
		case state == chain.Unknown && errors.As(err, &cut):
			if n := s.count(row); heads[i] && (cut.Blamed || n >= suspectAfter) {
				apart = append(apart, Failure{Row: row, Err: fmt.Errorf("to be tried apart: %w", err), Suspect: true})
			}
		}
	}
	return apart
}

// count notes a lost connection with a row in flight. The caller holds mu.
func (s *suspects) count(row ClaimedRow) (n int) {
	c, known := s.cuts[row.Record.ID]
	if !known {
		c.at = s.published
	}
	c.n++
	s.cuts[row.Record.ID] = c
	return c.n
}

// convict notes a batch of retries, in which a row is alone in flight. One for which the
// connection ended is refused if the broker said so, or if that has happened often while
// other rows were published. Otherwise the broker may be down, no row is to blame, and
// the row is returned as a suspect still: other retries have their turn before it.
func (s *suspects) convict(b *batch) (still []Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, row := range b.rows {
		var cut *CutError
		state, err := b.Outcome(i)
		switch {
		case state == chain.Published:
			delete(s.cuts, row.Record.ID)
			continue
		case state != chain.Unknown || !errors.As(err, &cut):
			continue
		}
		n := s.count(row)
		if cut.Blamed || n >= convictAfter && s.published > s.cuts[row.Record.ID].at {
			b.Convict(i, fmt.Errorf("the connection ended %d times with this message in flight, at last with it alone: %w", n, cut.Err))
		} else {
			still = append(still, Failure{Row: row, Err: err, Suspect: true, RetryIn: suspectPause})
		}
	}
	return still
}

// suspectPause is how long a suspect waits that could not be judged.
const suspectPause = 100 * time.Millisecond

// routes decides which failures mean that a whole route leads nowhere: they become
// one failure for each route. The other failures stay as they are.
func (s *suspects) routes(done []ClaimedRow, failed []Failure) []Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range failed {
		if ofRoute(f.Err) {
			s.nowhere[f.Row.Record.Name]++
		}
	}
	for _, row := range done {
		delete(s.nowhere, row.Record.Name) // not the route, then
	}
	kept := failed[:0:0]
	told := map[string]bool{}
	for _, f := range failed {
		name := f.Row.Record.Name
		if ofRoute(f.Err) && s.nowhere[name] >= routeAfter {
			if told[name] {
				continue
			}
			told[name], f.Route = true, true
		}
		kept = append(kept, f)
	}
	return kept
}

// ofRoute reports whether a failure may be that of the whole route: the broker has
// nowhere to put the record, or does not answer for it.
func ofRoute(err error) bool {
	var nowhere *UnroutableError
	var silent *UnconfirmedError
	return errors.As(err, &nowhere) || errors.As(err, &silent)
}
