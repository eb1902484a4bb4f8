package outbox

import (
	"errors"
	"fmt"
	"sync"

	"github.com/waybill-go/waybill/internal/chain"
)

// trouble is what a relay remembers of rows and routes that may be at fault. It
// is shared by the relay's workers, and lost with the process at no harm.
type trouble struct {
	mu         sync.Mutex
	cuts       map[int64]cuts // of rows that were in flight when the connection ended
	published  int            // rows in all, which show that the broker works
	unroutable map[string]int // messages of a name in a row that had nowhere to go
}

// cuts is what a row is suspected for.
type cuts struct {
	n     int  // how often the connection ended with it in flight
	at    int  // how many rows had been published when it last did
	shown bool // it did with the row alone, after others had got through
}

func newTrouble() *trouble {
	return &trouble{cuts: map[int64]cuts{}, unroutable: map[string]int{}}
}

const (
	suspectAfter = 2      // cuts with others in flight, after which a row goes alone
	convictAfter = 4      // cuts in all, after which it is to blame if others get through
	routeAfter   = 3      // messages of one name with nowhere to go, after which the route is blocked
	rememberCuts = 10_000 // rows; far more than a window
)

// alone marks the rows that must be published with nothing else in flight, so
// that it shows which of them the broker cuts the connection for, with how
// suspect they are. Nil means none.
func (t *trouble) alone(rows []ClaimedRow) []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.cuts) == 0 {
		return nil
	}
	marks := make([]int, len(rows))
	for i, row := range rows {
		if n := t.cuts[row.ID].n; n >= suspectAfter {
			marks[i] = n
		}
	}
	return marks
}

// learn takes in how a batch went, and turns those that are found to be the
// cause of lost connections into refused ones. Where nothing gets through, the
// broker is down and no row is to blame.
func (t *trouble) learn(b *batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.cuts) > rememberCuts {
		clear(t.cuts)
	}
	for i, row := range b.rows {
		if state, _ := b.Outcome(i); state == chain.Published {
			t.published++
			delete(t.cuts, row.ID)
		}
	}
	for i, row := range b.rows {
		var cut *CutError
		if state, err := b.Outcome(i); state != chain.Unknown || !errors.As(err, &cut) {
			continue
		}
		before := t.cuts[row.ID]
		now := cuts{before.n + 1, t.published, before.shown || b.GoesAlone(i) && t.published > before.at}
		if cut.Blamed {
			now.n = max(now.n, suspectAfter)
		}
		t.cuts[row.ID] = now
		if b.GoesAlone(i) && (cut.Blamed || now.n >= convictAfter && now.shown) {
			b.Convict(i, fmt.Errorf("the connection ended %d times with this message in flight, at last with it alone: %w", now.n, cut.Err))
		}
	}
}

// routes decides which failures mean that a whole route leads nowhere: those
// become one failure for each route. The others stay as they are.
func (t *trouble) routes(done []ClaimedRow, failed []Failure) []Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range failed {
		var e *UnroutableError
		if errors.As(f.Err, &e) {
			t.unroutable[f.Row.Record.Name]++
		}
	}
	for _, row := range done {
		delete(t.unroutable, row.Record.Name) // not the route, then
	}
	kept := failed[:0:0]
	told := map[string]bool{}
	for _, f := range failed {
		var e *UnroutableError
		name := f.Row.Record.Name
		if errors.As(f.Err, &e) && (f.Row.RouteFailures > 0 || t.unroutable[name] >= routeAfter) {
			if told[name] {
				continue
			}
			told[name], f.Route = true, true
		}
		kept = append(kept, f)
	}
	return kept
}
