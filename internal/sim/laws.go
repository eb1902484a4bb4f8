package sim

import (
	"fmt"
)

// laws judges a run. What is broken first counts.
type laws struct {
	messages    []*message // of all dispatched, by number
	dispatchers int        // that are not done
	ids         int        // given by mutants
	commits     []*message // in order
	store       map[*message]int
	first       [keys]int // the last commit that was delivered for the first time, by key
	done        map[*message]int
	last        [keys]int // the last commit whose effect has happened, by key
	duplicates  int
	broken      string
}

func (l *laws) breaks(format string, args ...any) {
	if l.broken == "" {
		l.broken = fmt.Sprintf(format, args...)
	}
}

// message returns a new one.
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

// stored hears of a message that the broker has stored.
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

// delivered hears of a message that a consumer got. For the first time they come
// in the order of their commits, none left out.
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

// effect hears of a handler's effect that has been committed.
func (l *laws) effect(m *message) {
	switch l.done[m]++; {
	case l.done[m] > 1:
		l.breaks("effect: that of message %d has happened %d times", m.no, l.done[m])
	case m.commit < l.last[m.key]:
		l.breaks("order: the effect of message %d of key %d, commit %d, came after that of commit %d", m.no, m.key, m.commit, l.last[m.key])
	}
	l.last[m.key] = max(l.last[m.key], m.commit)
}

// pending is how many committed messages have had no effect.
func (l *laws) pending() (n int) {
	for _, m := range l.commits {
		if l.done[m] == 0 {
			n++
		}
	}
	return n
}
