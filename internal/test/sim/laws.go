package sim

import (
	"fmt"
)

// laws checks a run, and keeps the first violation.
type laws struct {
	messages    []*message       // all dispatched messages, by number
	dispatchers int              // dispatchers that are not done
	ids         int              // lowest id given by a mutant
	commits     []*message       // committed messages, in order
	store       map[*message]int // how often the broker stored a message
	first       [keys]int        // highest commit delivered, by key
	done        map[*message]int // how often the effect of a message was committed
	last        [keys]int        // highest commit with a committed effect, by key
	duplicates  int
	broken      string // the first violation
}

func (l *laws) breaks(format string, args ...any) {
	if l.broken == "" {
		l.broken = fmt.Sprintf(format, args...)
	}
}

// message returns a new message of a key.
func (l *laws) message(key int) *message {
	m := &message{no: len(l.messages), key: key}
	l.messages = append(l.messages, m)
	return m
}

// anotherID returns an id that no message has.
func (l *laws) anotherID() int {
	l.ids--
	return l.ids
}

func (l *laws) committed(m *message) { l.commits = append(l.commits, m) }

// stored checks a message that the broker has stored.
func (l *laws) stored(m *message, id int) {
	if l.store[m]++; l.store[m] > 1 {
		l.duplicates++
	}
	switch {
	case m.commit == 0:
		l.breaks("phantom: message %d was sent, and its transaction has not committed", m.no)
	case id != m.no:
		l.breaks("id: message %d was sent as %d", m.no, id)
	}
}

// delivered checks a delivery to a consumer: the first deliveries of a key's messages
// are in commit order, without a gap.
func (l *laws) delivered(m *message) {
	if m.commit <= l.first[m.key] {
		return // it was delivered before
	}
	for _, before := range l.commits {
		if before.key == m.key && before.commit < m.commit && before.commit > l.first[m.key] {
			l.breaks("order: message %d of key %d, commit %d, was delivered before commit %d", m.no, m.key, m.commit, before.commit)
		}
	}
	l.first[m.key] = m.commit
}

// effect checks a committed effect of a handler: one for each message, in commit
// order. A dead letter that is replayed has no order.
func (l *laws) effect(m *message) {
	switch l.done[m]++; {
	case l.done[m] > 1:
		l.breaks("effect: that of message %d has happened %d times", m.no, l.done[m])
	case m.buried:
		return
	case m.commit < l.last[m.key]:
		l.breaks("order: the effect of message %d of key %d, commit %d, came after that of commit %d", m.no, m.key, m.commit, l.last[m.key])
	}
	l.last[m.key] = max(l.last[m.key], m.commit)
}

// pending returns the number of committed messages without an effect.
func (l *laws) pending() (n int) {
	for _, m := range l.commits {
		if l.done[m] == 0 {
			n++
		}
	}
	return n
}
