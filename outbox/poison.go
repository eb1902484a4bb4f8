package outbox

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/keyorder"
)

// poisonDetector counts the failures that may be the fault of one row or route. The loops
// of a relay share it; losing it with the process does no harm.
type poisonDetector struct {
	mu          sync.Mutex
	disconnects map[waybill.MessageID]disconnects
	published   int            // rows published over the shared connection
	unroutable  map[string]int // by message name: consecutive failures of its route
}

// disconnects counts the connections that were lost with one row in flight.
type disconnects struct {
	count int
	at    int // poisonDetector.published at the first loss
}

func newPoisonDetector() *poisonDetector {
	return &poisonDetector{disconnects: map[waybill.MessageID]disconnects{}, unroutable: map[string]int{}}
}

const (
	isolateAfter   = 2      // lost connections that have a row retried in isolation
	poisonAfter    = 4      // lost connections that refuse a row if other rows were published meanwhile
	routeAfter     = 3      // consecutive failures of a route that block it
	maxDisconnects = 10_000 // limit of disconnects, in rows; far more than a window
)

// observe records the outcome of a batch on the shared connection. It returns the
// heads of keys to retry in isolation: in flight when the broker blamed a record, or
// at isolateAfter lost connections.
func (s *poisonDetector) observe(b *batch) (isolate []Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.disconnects) > maxDisconnects {
		clear(s.disconnects)
	}
	heads := b.heads()
	for i, row := range b.rows {
		state, err := b.Outcome(i)
		var cut *ConnectionLostError
		switch {
		case state == keyorder.Published:
			s.published++
			delete(s.disconnects, row.Record.ID)
		case state == keyorder.Unknown && errors.As(err, &cut):
			if n := s.count(row); heads[i] && (cut.CausedByMessage || n >= isolateAfter) {
				isolate = append(isolate, Failure{Row: row, Err: fmt.Errorf("to be tried apart: %w", err), Suspect: true})
			}
		}
	}
	return isolate
}

// count records a connection lost with row in flight, and returns how many there were.
// The caller holds mu.
func (s *poisonDetector) count(row ClaimedRow) (n int) {
	c, known := s.disconnects[row.Record.ID]
	if !known {
		c.at = s.published
	}
	c.count++
	s.disconnects[row.Record.ID] = c
	return c.count
}

// confirm records the outcome of a batch of retries, each alone in flight. A row that
// lost its connection is refused if the broker blamed it, or at poisonAfter lost
// connections if other rows were published since the first. Otherwise the broker may
// be down: the row is returned as a suspect, to be retried after suspectPause.
func (s *poisonDetector) confirm(b *batch) (still []Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, row := range b.rows {
		var cut *ConnectionLostError
		state, err := b.Outcome(i)
		switch {
		case state == keyorder.Published:
			delete(s.disconnects, row.Record.ID)
			delete(s.unroutable, row.Record.Name) // the route works
			continue
		case state != keyorder.Unknown || !errors.As(err, &cut):
			continue
		}
		n := s.count(row)
		if cut.CausedByMessage || n >= poisonAfter && s.published > s.disconnects[row.Record.ID].at {
			b.Reject(i, fmt.Errorf("the connection ended %d times with this message in flight, at last with it alone: %w", n, cut.Err))
		} else {
			still = append(still, Failure{Row: row, Err: err, Suspect: true, RetryIn: suspectPause})
		}
	}
	return still
}

// suspectPause is the retry delay of a suspect that was not refused.
const suspectPause = 100 * time.Millisecond

// routes merges the failures of each route that failed routeAfter times in a row into
// one failure of the route. Other failures are returned unchanged.
func (s *poisonDetector) routes(done []ClaimedRow, failed []Failure) []Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range failed {
		if ofRoute(f.Err) {
			s.unroutable[f.Row.Record.Name]++
		}
	}
	for _, row := range done {
		delete(s.unroutable, row.Record.Name) // the route works
	}
	kept := failed[:0:0]
	merged := map[string]bool{}
	for _, f := range failed {
		name := f.Row.Record.Name
		if ofRoute(f.Err) && s.unroutable[name] >= routeAfter {
			if merged[name] {
				continue
			}
			merged[name], f.Route = true, true
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
