// Package verdict compares committed messages with those that came: deliveries to a
// broker, or effects of handlers. The demo, the end-to-end tests and the fault campaign
// judge by it.
package verdict

import "fmt"

// A Message is one that was committed, was delivered or had an effect. Key and N identify
// it.
type Message struct {
	Key       string
	N         int    // its number among the committed ones of its key, from 1
	ID        string // empty: not compared
	Origin    string // the transaction that wrote it, in words
	Via       string // how it came, in words
	Unordered bool   // its key promises no order
}

// Findings are the differences between committed messages and those that came.
type Findings struct {
	Lost       int // committed, and never came
	Phantoms   int // came, and no transaction committed it; or two did
	Duplicates int // came again
	IDChanges  int // came under another id
	Disorders  int // came first when it was not the next of its key

	Words   []string // the first of each kind, without duplicates
	Arrived map[Message]bool
}

// wordy is how many findings of a kind are put in words.
const wordy = 5

// Compare compares messages that came, in the order in which they did, with all that are
// committed.
func Compare(committed, came []Message) Findings {
	f := Findings{Arrived: map[Message]bool{}}
	known := make(map[Message]Message, len(committed))
	for _, m := range committed {
		if first, twice := known[m.identity()]; twice {
			f.find(&f.Phantoms, "phantom: %v was committed beside %v", m, first)
		}
		known[m.identity()] = m
	}
	latest := map[string]int{}
	for _, m := range came {
		at := m.identity()
		want, ok := known[at]
		switch {
		case !ok || want.Origin != m.Origin:
			f.find(&f.Phantoms, "phantom: %v was never committed", m)
			continue
		case want.ID != m.ID && want.ID != "" && m.ID != "":
			f.find(&f.IDChanges, "id change: %v, want %s", m, want.ID)
		}
		if f.Arrived[at] {
			f.Duplicates++
			continue
		}
		f.Arrived[at] = true
		if m.N != latest[m.Key]+1 && !m.Unordered {
			f.find(&f.Disorders, "order: %v came after %d", m, latest[m.Key])
		}
		latest[m.Key] = max(latest[m.Key], m.N)
	}
	for _, m := range committed {
		if !f.Arrived[m.identity()] {
			f.find(&f.Lost, "lost: %v never came", m)
		}
	}
	return f
}

// Has reports whether a committed message came.
func (f Findings) Has(m Message) bool { return f.Arrived[m.identity()] }

func (f *Findings) find(count *int, format string, args ...any) {
	if *count++; *count <= wordy {
		f.Words = append(f.Words, fmt.Sprintf(format, args...))
	}
}

func (m Message) identity() Message { return Message{Key: m.Key, N: m.N} }

func (m Message) String() string {
	return fmt.Sprintf("%s %d (%s, %s, %s)", m.Key, m.N, m.ID, m.Origin, m.Via)
}
