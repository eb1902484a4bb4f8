package outbox

import (
	"errors"
	"slices"

	"github.com/waybill-go/waybill"
)

// chains decides what of a batch may be published next: with strict order at
// most one record of a key is unconfirmed, and all keys go in parallel. It is
// pure: it neither waits nor sends. Seq is the index into the batch.
type chains struct {
	rows []ClaimedRow
	next []int // the following row of the same key, or -1
	// stream is nil in strict order. Otherwise a row may be published together
	// with the one before it in its key, if both have the same stream.
	stream func(*waybill.Record) string
	stuck  map[string]bool // keys with a refused row; what is behind it may be on its way already
	ready  []int           // rows that may be published, oldest first
	late   []int           // likewise, but alone: with nothing else in flight
	alone  []int           // how suspect a row is; 0 means that it need not go alone
	open   int             // rows handed out whose result is not in
	out    bool            // hand out nothing more
	state  []rowState
	errs   []error
}

type rowState uint8

const (
	waiting rowState = iota
	handedOut
	published
	refused
	unknown // the broker could not be reached, or did not answer
)

// newChains plans rows. With atomic set, the order inside one batch is kept by
// the publisher, so all rows are ready at once. Rows that are alone, nil means
// none, are published last and one by one, the least suspect first.
func newChains(rows []ClaimedRow, atomic bool, alone []int) *chains {
	c := &chains{rows: rows, next: make([]int, len(rows)), state: make([]rowState, len(rows)), stuck: map[string]bool{}, errs: make([]error, len(rows)), ready: make([]int, 0, len(rows)), alone: alone}
	last := make(map[string]int)
	stays := make([]bool, len(rows))
	for i, row := range rows {
		c.next[i] = -1
		before, follows := last[row.Record.Key]
		follows = follows && row.Record.Key != ""
		last[row.Record.Key] = i
		switch {
		case follows && atomic && stays[before]:
			stays[i] = true
		case follows && !atomic:
			c.next[before] = i
		case row.Record.Problem != nil:
			stays[i] = true
			c.refuse(i)
		default:
			c.queue(i)
		}
	}
	return c
}

// queue makes a row ready.
func (c *chains) queue(i int) {
	if c.goesAlone(i) {
		c.late = append(c.late, i)
	} else {
		c.ready = append(c.ready, i)
	}
}

func (c *chains) goesAlone(i int) bool { return c.alone != nil && c.alone[i] > 0 }

// take hands out up to max rows to publish now.
func (c *chains) take(max int, into []Item) []Item {
	if c.out {
		return into
	}
	if len(c.ready) == 0 && c.open == 0 && len(c.late) > 0 {
		least := 0
		for n, i := range c.late {
			if c.alone[i] < c.alone[c.late[least]] {
				least = n
			}
		}
		c.ready = append(c.ready, c.late[least])
		c.late = slices.Delete(c.late, least, least+1)
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
		if i := into[at].Seq; c.followsAtOnce(i) {
			into = c.handOut(c.next[i], into)
		}
	}
	return into
}

func (c *chains) handOut(i int, into []Item) []Item {
	c.state[i] = handedOut
	c.open++
	return append(into, Item{i, c.rows[i].Record})
}

// followsAtOnce reports whether the row behind i, which is being handed out, may
// be on its way together with it.
func (c *chains) followsAtOnce(i int) bool {
	next := c.next[i]
	return next >= 0 && c.rows[next].Record.Problem == nil && !c.goesAlone(i) && !c.goesAlone(next) &&
		c.stream(c.rows[i].Record) == c.stream(c.rows[next].Record)
}

// done takes a result in. A success makes the key's next row ready; after a
// failure the rest of the key stays; after an outage everything else stays too.
func (c *chains) done(r Result) {
	if r.Seq < 0 || r.Seq >= len(c.rows) || c.state[r.Seq] != handedOut {
		return // nobody asked, or it was answered before
	}
	c.open--
	switch {
	case r.Err == nil:
		c.state[r.Seq] = published
		switch next := c.next[r.Seq]; {
		case next < 0 || c.state[next] != waiting || c.stuck[c.rows[next].Record.Key]:
		case c.rows[next].Record.Problem != nil:
			c.refuse(next)
		default:
			c.queue(next)
		}
	case errors.Is(r.Err, waybill.ErrUnavailable):
		c.state[r.Seq], c.errs[r.Seq] = unknown, r.Err
		c.out = true
	default:
		c.state[r.Seq], c.errs[r.Seq] = refused, r.Err
		if key := c.rows[r.Seq].Record.Key; c.stream != nil && key != "" {
			c.stuck[key] = true
		}
	}
}

// abandon takes err for every result that is not in.
func (c *chains) abandon(err error) {
	c.out = true
	for i, s := range c.state {
		if s == handedOut {
			c.state[i], c.errs[i] = unknown, err
		}
	}
}

// refuse fails a row that cannot be published as it is stored.
func (c *chains) refuse(i int) {
	c.state[i], c.errs[i] = refused, c.rows[i].Record.Problem
}

// outage returns the first error that says the broker is out of reach.
func (c *chains) outage() error {
	for i, s := range c.state {
		if s == unknown {
			return c.errs[i]
		}
	}
	return nil
}

// convict makes row i, whose result is unknown, one that is refused.
func (c *chains) convict(i int, err error) { c.state[i], c.errs[i] = refused, err }

// finished returns the published and the refused rows.
func (c *chains) finished() (done []ClaimedRow, failed []Failure) {
	for i, s := range c.state {
		switch s {
		case published:
			done = append(done, c.rows[i])
		case refused:
			failed = append(failed, Failure{Row: c.rows[i], Err: c.errs[i]})
		}
	}
	return done, failed
}
