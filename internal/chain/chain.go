// Package chain decides which records of a batch a relay may publish next, and keeps
// the outcome of each. It is pure: it neither waits nor sends, so that the relay and
// its simulation share these decisions.
package chain

import (
	"errors"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/mutant"
)

// Chains schedules the records of a batch, in commit order: with strict order at most
// one record of a key is unconfirmed, and all keys are published in parallel. Records
// are identified by their index. It is not safe for concurrent use.
type Chains struct {
	records []*waybill.Record
	next    []int // the following record of the same key, or -1
	// stream is nil in strict order. Otherwise a record may be published together
	// with the one before it in its key, if both have the same stream.
	stream func(*waybill.Record) string
	stuck  map[string]bool // with stream: keys with a refused record, which hold back their next ones
	ready  []int           // may be published, oldest first
	open   int             // number of records handed out and not answered
	out    bool            // no more records are handed out
	state  []State
	errs   []error
}

// State is the state of a record.
type State uint8

const (
	Waiting   State = iota
	HandedOut       // not answered yet
	Published
	Refused
	Unknown // the broker could not be reached, or did not answer
)

// New returns chains of records. With atomic the publisher keeps the order inside one
// batch, so all are ready at once, except records behind an unreadable one of their key.
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

// Pipeline lets consecutive records of a key be unconfirmed together if they have the
// same stream. It is called before Take.
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
	// The next record of a key goes in the same call, or after the confirmation: a
	// later call may use another connection, on which it could arrive first.
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

// followsAtOnce reports whether the next record of i's key may be handed out in the
// same call as i.
func (c *Chains) followsAtOnce(i int) bool {
	next := c.next[i]
	return next >= 0 && c.records[next].Problem == nil && c.stream(c.records[i]) == c.stream(c.records[next])
}

// Done records the result of record i. A success makes the key's next record ready; a
// refusal holds back the rest of the key; an outage (waybill.ErrUnavailable) holds back
// all other records, too. A second result of a record is ignored.
func (c *Chains) Done(i int, err error) {
	if i < 0 || i >= len(c.records) || c.state[i] != HandedOut {
		return // not handed out, or answered before
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

// Open returns the number of records handed out and not answered.
func (c *Chains) Open() int { return c.open }

// Stop makes Take return no more records, until Resume.
func (c *Chains) Stop() { c.out = true }

// Resume lets Take return records again, after an outage that is over.
func (c *Chains) Resume() { c.out = false }

// Abandon stops, and makes err the result of every record that is not answered.
func (c *Chains) Abandon(err error) {
	c.out = true
	for i, s := range c.state {
		if s == HandedOut {
			c.state[i], c.errs[i] = Unknown, err
		}
	}
}

// refuse refuses a record that could not be read from storage.
func (c *Chains) refuse(i int) { c.state[i], c.errs[i] = Refused, c.records[i].Problem }

// Outcome returns the state of a record, and the error if it is Refused or Unknown.
func (c *Chains) Outcome(i int) (State, error) { return c.state[i], c.errs[i] }

// Outage returns the error of the first record with state Unknown, or nil.
func (c *Chains) Outage() error {
	for i, s := range c.state {
		if s == Unknown {
			return c.errs[i]
		}
	}
	return nil
}

// Convict changes record i from Unknown to Refused, with err.
func (c *Chains) Convict(i int, err error) { c.state[i], c.errs[i] = Refused, err }
