package waytest

import (
	"fmt"
	"slices"
	"time"
)

// A waitingModel is a property's model of the waiting messages, by key and in order.
// Messages without a key have no order.
type waitingModel struct {
	waiting map[string][]int
	joined  map[order]time.Time // when it was there at the latest
	delayed map[order]dueTime   // they join when they are due
}

// A dueTime is known to lie between two moments.
type dueTime struct{ from, to time.Time }

func newWaitingModel() *waitingModel {
	return &waitingModel{map[string][]int{}, map[order]time.Time{}, map[order]dueTime{}}
}

func (l *waitingModel) join(o order) {
	l.waiting[o.Key] = append(l.waiting[o.Key], o.Seq)
	l.joined[o] = time.Now()
}

// delay has o join when it is due: delay after a moment between start and now.
func (l *waitingModel) delay(o order, start time.Time, delay time.Duration) {
	const clock = time.Millisecond // databases round
	l.delayed[o] = dueTime{start.Add(delay - clock), time.Now().Add(delay + clock)}
}

func (l *waitingModel) leave(o order) {
	l.waiting[o.Key] = slices.DeleteFunc(l.waiting[o.Key], func(seq int) bool { return seq == o.Seq })
	delete(l.joined, o)
}

// count is the number of waiting messages, without the delayed ones.
func (l *waitingModel) count() (n int) {
	for _, seqs := range l.waiting {
		n += len(seqs)
	}
	return n
}

// see compares messages that were found just now with the model: each is waiting,
// and those of a key are the first of the key, in order. A delayed message has
// joined by then, at an unknown moment; its position is the one where it was found.
func (l *waitingModel) see(found []order) error {
	at := map[string]int{}
	seen := map[order]bool{}
	for _, o := range found {
		if due, ok := l.delayed[o]; ok {
			if err := l.admit(o, at[o.Key], due); err != nil {
				return fmt.Errorf("found %v: %w", found, err)
			}
		}
		waiting := l.waiting[o.Key]
		switch {
		case seen[o]:
			return fmt.Errorf("found %v: %v twice", found, o)
		case o.Key == "" && !slices.Contains(waiting, o.Seq):
			return fmt.Errorf("found %v: %v is gone, or was never there", found, o)
		case o.Key != "" && (at[o.Key] >= len(waiting) || waiting[at[o.Key]] != o.Seq):
			return fmt.Errorf("found %v: key %s has %v waiting", found, o.Key, waiting)
		}
		seen[o] = true
		at[o.Key]++
	}
	return nil
}

// admit lets a delayed message join at a position of its key.
func (l *waitingModel) admit(o order, at int, due dueTime) error {
	if time.Now().Before(due.from) {
		return fmt.Errorf("%v came %v before it was due", o, time.Until(due.from))
	}
	waiting := l.waiting[o.Key]
	if o.Key == "" {
		at = len(waiting)
	}
	if at > len(waiting) {
		return fmt.Errorf("%v came and key %s has %v waiting", o, o.Key, waiting)
	}
	delete(l.delayed, o)
	for _, seq := range waiting[at:] {
		if l.joined[order{o.Key, seq}].Before(due.from) {
			return fmt.Errorf("%v came before %d, which was there when it was due", o, seq)
		}
	}
	for other, earlier := range l.delayed {
		if o.Key != "" && other.Key == o.Key && earlier.to.Before(due.from) {
			return fmt.Errorf("%v came before %d, which was due before", o, other.Seq)
		}
	}
	l.waiting[o.Key] = slices.Insert(waiting, at, o.Seq)
	l.joined[o] = time.Now()
	return nil
}
