// Package hand orders the deliveries that a worker has in flight: received and not
// settled. It is pure: it neither waits nor sends, so that the worker and its
// simulation take the same decisions.
package hand

import "github.com/waybill-go/waybill"

// A Hand holds deliveries so that of each key one runs at a time, in order, and
// keys run in parallel. It is not safe for concurrent use.
type Hand struct {
	ready  []*waybill.Delivery            // may run now, oldest first
	behind map[string][]*waybill.Delivery // per ready or running key: the deliveries behind it
	share  int                            // limit of one key in flight; 0 means unlimited
	count  int                            // in flight, including those being run or settled
}

// New returns an empty hand that takes up to share deliveries of one key, or any
// number with 0.
func New(share int) *Hand {
	return &Hand{behind: map[string][]*waybill.Delivery{}, share: share}
}

// Count returns the number of deliveries in flight.
func (h *Hand) Count() int { return h.count }

// Add takes d in. It reports false when its key has its share already: d has
// to go back, so that one slow key cannot fill the hand.
func (h *Hand) Add(d *waybill.Delivery) bool {
	h.count++
	key := d.Record.Key
	queue, busy := h.behind[key]
	switch {
	case key == "":
		h.ready = append(h.ready, d)
	case !busy:
		h.behind[key] = nil
		h.ready = append(h.ready, d)
	case h.share > 0 && len(queue) >= h.share-1:
		return false
	default:
		h.behind[key] = append(queue, d)
	}
	return true
}

// Take returns the next delivery to run, or nil.
func (h *Hand) Take() *waybill.Delivery {
	if len(h.ready) == 0 {
		return nil
	}
	d := h.ready[0]
	h.ready[0] = nil
	h.ready = h.ready[1:]
	return d
}

// Succeeded makes the next delivery of d's key ready. d stays in flight until it is
// settled.
func (h *Hand) Succeeded(d *waybill.Delivery) {
	key := d.Record.Key
	if key == "" {
		return
	}
	queue := h.behind[key]
	if len(queue) == 0 {
		delete(h.behind, key)
		return
	}
	h.behind[key] = queue[1:]
	h.ready = append(h.ready, queue[0])
}

// Failed returns the deliveries behind d, which must go back to the transport with
// d and must not run before it. The key stays busy until Forget.
func (h *Hand) Failed(d *waybill.Delivery) []*waybill.Delivery {
	key := d.Record.Key
	if key == "" {
		return nil
	}
	queue := h.behind[key]
	h.behind[key] = nil
	return queue
}

// Forget ends a key whose deliveries have gone back. What arrived for it
// meanwhile is returned, to go back too.
func (h *Hand) Forget(d *waybill.Delivery) []*waybill.Delivery {
	queue := h.behind[d.Record.Key]
	delete(h.behind, d.Record.Key)
	return queue
}

// Rest returns all that has not begun to run, and forgets it.
func (h *Hand) Rest() []*waybill.Delivery {
	all := h.ready
	h.ready = nil
	for key, queue := range h.behind {
		all = append(all, queue...)
		h.behind[key] = nil
	}
	return all
}

// Settled takes n deliveries out.
func (h *Hand) Settled(n int) { h.count -= n }
