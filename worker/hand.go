package worker

import "github.com/waybill-go/waybill"

// hand is what a worker has received and not yet settled, arranged so that of
// each key one delivery runs at a time, in order, and keys run in parallel. It
// is pure: only Run's goroutine touches it.
type hand struct {
	ready  []*waybill.Delivery            // may run now, oldest first
	behind map[string][]*waybill.Delivery // per key that is ready or running: what waits behind it
	share  int                            // how many of one key may be in hand; 0 means any number
	count  int                            // all that is in hand, running or being settled included
}

func newHand() *hand { return &hand{behind: map[string][]*waybill.Delivery{}} }

// add takes d in. It reports false when its key has its share already: d has
// to go back, so that one slow key cannot fill the hand.
func (h *hand) add(d *waybill.Delivery) bool {
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

// take returns the next delivery to run, or nil.
func (h *hand) take() *waybill.Delivery {
	if len(h.ready) == 0 {
		return nil
	}
	d := h.ready[0]
	h.ready[0] = nil
	h.ready = h.ready[1:]
	return d
}

// succeeded makes what waits behind d ready. d stays in hand until it is settled.
func (h *hand) succeeded(d *waybill.Delivery) {
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

// failed returns what waits behind d, which must go back to the transport with
// it and must not run before d. The key stays busy until forget.
func (h *hand) failed(d *waybill.Delivery) []*waybill.Delivery {
	key := d.Record.Key
	if key == "" {
		return nil
	}
	queue := h.behind[key]
	h.behind[key] = nil
	return queue
}

// forget ends a key whose deliveries have gone back. What arrived for it
// meanwhile is returned, to go back too.
func (h *hand) forget(d *waybill.Delivery) []*waybill.Delivery {
	queue := h.behind[d.Record.Key]
	delete(h.behind, d.Record.Key)
	return queue
}

// rest returns all that has not begun to run, and forgets it.
func (h *hand) rest() []*waybill.Delivery {
	all := h.ready
	h.ready = nil
	for key, queue := range h.behind {
		all = append(all, queue...)
		h.behind[key] = nil
	}
	return all
}

// settled takes n deliveries out.
func (h *hand) settled(n int) { h.count -= n }
