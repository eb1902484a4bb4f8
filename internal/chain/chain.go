// Package chain decides what of a batch a relay may publish next, and what
// became of it. It is pure: it neither waits nor sends, so that the relay and the
// simulation of it go by the same decisions.
package chain

import (
	"errors"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/mutant"
)

// Chains are the records of a batch, in commit order: with strict order at most
// one of a key is unconfirmed, and all keys go in parallel. Records are named by
// their index. It is not safe for concurrent use.
type Chains struct {
	records []*waybill.Record
	next    []int // the following record of the same key, or -1
	// stream is nil in strict order. Otherwise a record may be published together
	// with the one before it in its key, if both have the same stream.
	stream func(*waybill.Record) string
	stuck  map[string]bool // keys with a refused record; what is behind it may be on its way already
	ready  []int           // may be published, oldest first
	open   int             // handed out, and the result is not in
	out    bool            // hand out nothing more
	state  []State
	errs   []error
}

// State is what has become of a record.
type State uint8

const (
	Waiting   State = iota
	HandedOut       // its result is not in
	Published
	Refused
	Unknown // the broker could not be reached, or did not answer
)

// New plans records. With atomic set, the order inside one batch is kept by the
// publisher, so all are ready at once.
func New(records []*waybill.Record, atomic bool) *Chains {
	n := len(records)
	c := &Chains{records: records, next: make([]int, n), state: make([]State, n), stuck: map[string]bool{}, errs: make([]error, n), ready: make([]int, 0, n)}
	last := make(map[string]int)
	stays := make([]bool, n)
	for i, rec := range records {
		c.next[i] = -1
		before, follows := last[rec.Key]
		follows = follows && rec.Key != ""
		last[rec.Key] = i
		switch {
		case follows && atomic && stays[before]:
			stays[i] = true
		case follows && !atomic && !mutant.Active(mutant.TwoInFlight):
			c.next[before] = i
		case rec.Problem != nil:
			stays[i] = true
			c.refuse(i)
		default:
			c.ready = append(c.ready, i)
		}
	}
	return c
}

// Pipeline lets records of a key go together that have the same stream. It is
// called before Take.
func (c *Chains) Pipeline(stream func(*waybill.Record) string) { c.stream = stream }

// Take appends up to max records to publish now, in order and in one call.
func (c *Chains) Take(max int, into []int) []int {
	if c.out {
		return into
	}
	first, n := len(into), min(max, len(c.ready))
	for _, i := range c.ready[:n] {
		into = c.handOut(i, into)
	}
	c.ready = c.ready[n:]
	if c.stream == nil {
		return into
	}
	// What follows them goes in the same call, or after their confirmation: a
	// later call may go over another connection, on which it could arrive first.
	for at := first; at < len(into) && len(into)-first < max; at++ {
		if i := into[at]; c.followsAtOnce(i) {
			into = c.handOut(c.next[i], into)
		}
	}
	return into
}

func (c *Chains) handOut(i int, into []int) []int {
	c.state[i] = HandedOut
	c.open++
	return append(into, i)
}

// followsAtOnce reports whether the record behind i, which is being handed out,
// may be on its way together with it.
func (c *Chains) followsAtOnce(i int) bool {
	next := c.next[i]
	return next >= 0 && c.records[next].Problem == nil && c.stream(c.records[i]) == c.stream(c.records[next])
}

// Done takes a result in. A success makes the key's next record ready; after a
// failure the rest of the key stays; after an outage everything else stays too.
// A second result of a record counts for nothing.
func (c *Chains) Done(i int, err error) {
	if i < 0 || i >= len(c.records) || c.state[i] != HandedOut {
		return // nobody asked, or it was answered before
	}
	c.open--
	switch {
	case err == nil:
		c.state[i] = Published
		switch next := c.next[i]; {
		case next < 0 || c.state[next] != Waiting || c.stuck[c.records[next].Key]:
		case c.records[next].Problem != nil:
			c.refuse(next)
		default:
			c.ready = append(c.ready, next)
		}
	case errors.Is(err, waybill.ErrUnavailable):
		c.state[i], c.errs[i] = Unknown, err
		c.out = true
	default:
		c.state[i], c.errs[i] = Refused, err
		if key := c.records[i].Key; c.stream != nil && key != "" {
			c.stuck[key] = true
		}
	}
}

// Open is how many are handed out and not answered.
func (c *Chains) Open() int { return c.open }

// Stop hands out nothing more, until Resume.
func (c *Chains) Stop() { c.out = true }

// Resume hands out records again, after an outage that is over.
func (c *Chains) Resume() { c.out = false }

// Abandon takes err for every result that is not in.
func (c *Chains) Abandon(err error) {
	c.out = true
	for i, s := range c.state {
		if s == HandedOut {
			c.state[i], c.errs[i] = Unknown, err
		}
	}
}

// refuse fails a record that cannot be published as it is stored.
func (c *Chains) refuse(i int) { c.state[i], c.errs[i] = Refused, c.records[i].Problem }

// Outcome returns what has become of a record, and why.
func (c *Chains) Outcome(i int) (State, error) { return c.state[i], c.errs[i] }

// Outage returns the first error that says the broker is out of reach.
func (c *Chains) Outage() error {
	for i, s := range c.state {
		if s == Unknown {
			return c.errs[i]
		}
	}
	return nil
}

// Convict makes record i, whose result is unknown, one that is refused.
func (c *Chains) Convict(i int, err error) { c.state[i], c.errs[i] = Refused, err }
