package outbox

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/keyorder"
)

// suspects counts the failures that may be the fault of one row or route. The loops
// of a relay share it; losing it with the process does no harm.
type suspects struct {
	mu        sync.Mutex
	cuts      map[waybill.MessageID]cuts
	published int            // rows published over the shared connection
	nowhere   map[string]int // by message name: consecutive failures of its route
}

// cuts counts the connections that were lost with one row in flight.
type cuts struct {
	n  int
	at int // suspects.published at the first loss
}

func newSuspects() *suspects {
	return &suspects{cuts: map[waybill.MessageID]cuts{}, nowhere: map[string]int{}}
}

const (
	suspectAfter = 2      // lost connections that make a row a suspect, retried in isolation
	convictAfter = 4      // lost connections that convict a row if other rows were published meanwhile
	routeAfter   = 3      // consecutive failures of a route that block it
	rememberCuts = 10_000 // limit of cuts, in rows; far more than a window
)

// observe records the outcome of a batch on the shared connection. It returns the
// heads of keys to retry in isolation: in flight when the broker blamed a record, or
// at suspectAfter lost connections.
func (s *suspects) observe(b *batch) (apart []Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cuts) > rememberCuts {
		clear(s.cuts)
	}
	heads := b.heads()
	for i, row := range b.rows {
		state, err := b.Outcome(i)
		var cut *ConnectionLostError
		switch {
		case state == keyorder.Published:
			s.published++
			delete(s.cuts, row.Record.ID)
		case state == keyorder.Unknown && errors.As(err, &cut):
			if n := s.count(row); heads[i] && (cut.CausedByMessage || n >= suspectAfter) {
				apart = append(apart, Failure{Row: row, Err: fmt.Errorf("to be tried apart: %w", err), Suspect: true})
			}
		}
	}
	return apart
}

// count records a connection lost with row in flight, and returns how many there were.
// The caller holds mu.
func (s *suspects) count(row ClaimedRow) (n int) {
	c, known := s.cuts[row.Record.ID]
	if !known {
		c.at = s.published
	}
	c.n++
	s.cuts[row.Record.ID] = c
	return c.n
}

// convict records the outcome of a batch of retries, each alone in flight. A row that
// lost its connection is refused if the broker blamed it, or at convictAfter lost
// connections if other rows were published since the first. Otherwise the broker may
// be down: the row is returned as a suspect, to be retried after suspectPause.
func (s *suspects) convict(b *batch) (still []Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, row := range b.rows {
		var cut *ConnectionLostError
		state, err := b.Outcome(i)
		switch {
		case state == keyorder.Published:
			delete(s.cuts, row.Record.ID)
			continue
		case state != keyorder.Unknown || !errors.As(err, &cut):
			continue
		}
		n := s.count(row)
		if cut.CausedByMessage || n >= convictAfter && s.published > s.cuts[row.Record.ID].at {
			b.Reject(i, fmt.Errorf("the connection ended %d times with this message in flight, at last with it alone: %w", n, cut.Err))
		} else {
			still = append(still, Failure{Row: row, Err: err, Suspect: true, RetryIn: suspectPause})
		}
	}
	return still
}

// suspectPause is the retry delay of a suspect that was not convicted.
const suspectPause = 100 * time.Millisecond

// routes merges the failures of each route that failed routeAfter times in a row into
// one failure of the route. Other failures are returned unchanged.
func (s *suspects) routes(done []ClaimedRow, failed []Failure) []Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range failed {
		if ofRoute(f.Err) {
			s.nowhere[f.Row.Record.Name]++
		}
	}
	for _, row := range done {
		delete(s.nowhere, row.Record.Name) // the route works
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

// ofRoute reports whether err may concern the whole route: the broker cannot route
// the record, or does not answer for it.
func ofRoute(err error) bool {
	var nowhere *UnroutableError
	var silent *UnconfirmedError
	return errors.As(err, &nowhere) || errors.As(err, &silent)
}
