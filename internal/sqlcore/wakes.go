package sqlcore

import (
	"sync"

	"github.com/waybill-go/waybill/outbox"
)

// Wakes are the channels that end the pauses of relays and receivers of this process.
// The zero value is ready for use, also concurrent use.
type Wakes struct{ of sync.Map }

// A target is a part of a transport, or a queue.
type target struct {
	queue bool
	part  outbox.Part
	name  string
}

// Of returns the channel of a part of a transport.
func (w *Wakes) Of(transport string, part outbox.Part) chan struct{} {
	return w.channel(target{part: part, name: transport})
}

// Queue returns the channel of a queue.
func (w *Wakes) Queue(name string) chan struct{} { return w.channel(target{queue: true, name: name}) }

func (w *Wakes) channel(to target) chan struct{} {
	c, ok := w.of.Load(to)
	if !ok {
		c, _ = w.of.LoadOrStore(to, make(chan struct{}, 1))
	}
	return c.(chan struct{})
}

// Hint signals that a transport may have rows, with and without a key. It never blocks.
func (w *Wakes) Hint(transport string) {
	signal(w.Of(transport, outbox.Keyed))
	signal(w.Of(transport, outbox.Unkeyed))
}

// HintQueue signals that a queue may have rows. It never blocks.
func (w *Wakes) HintQueue(name string) { signal(w.Queue(name)) }

// HintRows signals the targets of committed rows. It never blocks.
func (w *Wakes) HintRows(rows []outbox.Row) {
	for _, row := range rows {
		switch {
		case row.Queue != "":
			w.HintQueue(row.Queue)
		case row.Record.Key != "":
			signal(w.Of(row.Transport, outbox.Keyed))
		default:
			signal(w.Of(row.Transport, outbox.Unkeyed))
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
