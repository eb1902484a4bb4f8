package wayamqp

import (
	"sync"
	"time"
)

// looksWithin is the number of looks at a connection within Config.ConfirmWithin.
const looksWithin = 4

// A progress tracks how far the broker has read the publishes of one connection. It
// tells a silent queue from a slow broker: a publish is overtaken when a later one
// has been confirmed, because the broker must have read both. It counts looks and
// not time: a frozen process takes no looks. Its methods may be called
// concurrently.
type progress struct {
	mu        sync.Mutex
	begun     uint64 // number of publishes
	confirmed uint64 // the highest number of a confirmed publish
	looks     uint64 // number of looks
	seen      uint64 // confirmed as of the last look
	resumed   uint64 // the last look at which the broker blocked publishers
	moved     uint64 // the last look before a confirmation
}

// A mark is the position of a publish in its connection.
type mark struct {
	number uint64    // assigned before the write
	last   uint64    // the highest number assigned by the end of the write
	look   uint64    // the last look before the end of the write
	sent   time.Time // only for the error
}

// begin returns the number of a publish that is about to be written.
func (pr *progress) begin() uint64 {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.begun++
	return pr.begun
}

// written completes the mark of a publish.
func (pr *progress) written(m *mark) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	m.last, m.look, m.sent = pr.begun, pr.looks, time.Now()
}

// confirm notes that the broker has confirmed a publish, by ack or nack.
func (pr *progress) confirm(m mark) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.confirmed, pr.moved = max(pr.confirmed, m.number), pr.looks
}

// overtaken reports whether a publish written after m has been confirmed.
func (pr *progress) overtaken(m mark) bool {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return m.last < pr.confirmed
}

// observe counts and returns an observation. While the broker blocks publishers
// no publish is silent, and the wait starts again afterwards.
func (pr *progress) observe(blocked bool) observation {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.looks++
	if blocked {
		pr.resumed = pr.looks
	}
	l := observation{number: pr.looks, overtaken: pr.seen, resumed: pr.resumed, moved: pr.moved}
	pr.seen = pr.confirmed
	return l
}

// An observation is the state of a connection at one check.
type observation struct {
	number, overtaken, resumed, moved uint64
}

// silent reports whether the broker is silent about m: it was written more than
// looksWithin looks ago and was already overtaken at the previous look, since
// confirmations that arrive together are handled one after another.
func (l observation) silent(m mark) bool {
	return m.last < l.overtaken && l.number-max(m.look, l.resumed) > looksWithin
}

// maxOvertaken is how many confirmed publishes may be behind a silent one: the library keeps some
// 50 bytes for each that is confirmed out of order until the channel ends.
const maxOvertaken = 1 << 19

// distant reports whether too many publishes behind m have been confirmed to wait for it longer.
func (l observation) distant(m mark) bool { return l.overtaken > m.number+maxOvertaken }

// halted reports whether no publish has been confirmed since m was written, more
// than looksWithin looks ago.
func (l observation) halted(m mark) bool {
	return l.number-max(m.look, l.resumed, l.moved) > looksWithin
}
