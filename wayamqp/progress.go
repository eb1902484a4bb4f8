package wayamqp

import (
	"sync"
	"time"
)

// looksWithin is how many looks at a connection are in Config.ConfirmWithin.
const looksWithin = 4

// A progress is how far the broker has come with the publishes of one
// connection. It tells a silent queue from a slow broker: a publish is overtaken
// when one that was written after it has been confirmed, so that the broker must
// have read both. It counts looks and not time: a process that was frozen, or a
// broker that was, has not waited meanwhile. Its methods may be called
// concurrently.
type progress struct {
	mu        sync.Mutex
	begun     uint64 // publishes so far
	confirmed uint64 // the highest number of a confirmed publish
	looks     uint64 // so far
	seen      uint64 // confirmed as of the last look
	resumed   uint64 // the last look at which the broker blocked publishers
	moved     uint64 // the last look before a confirmation
}

// A mark is a publish's place among those of its connection.
type mark struct {
	number uint64    // given before it was written
	last   uint64    // the highest number given when it had been written
	look   uint64    // the last look before it had been written
	sent   time.Time // for the error alone
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

// overtaken reports whether one that was written after m has been confirmed.
func (pr *progress) overtaken(m mark) bool {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return m.last < pr.confirmed
}

// look counts a look and returns what it shows. While the broker blocks
// publishers nothing is silent, and the wait begins again afterwards.
func (pr *progress) look(blocked bool) sighting {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.looks++
	if blocked {
		pr.resumed = pr.looks
	}
	l := sighting{number: pr.looks, overtaken: pr.seen, resumed: pr.resumed, moved: pr.moved}
	pr.seen = pr.confirmed
	return l
}

// A sighting is the state of a connection at one look.
type sighting struct {
	number, overtaken, resumed, moved uint64
}

// silent reports whether the broker is silent about m: it was written more than
// looksWithin looks ago, and was overtaken at the last look already, since
// confirmations that arrive together are handled one after another.
func (l sighting) silent(m mark) bool {
	return m.last < l.overtaken && l.number-max(m.look, l.resumed) > looksWithin
}

// halted reports whether nothing at all has been confirmed since m was written,
// more than looksWithin looks ago.
func (l sighting) halted(m mark) bool {
	return l.number-max(m.look, l.resumed, l.moved) > looksWithin
}
