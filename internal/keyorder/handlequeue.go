package keyorder

import "github.com/waybill-go/waybill"

// A HandleQueue orders the deliveries that a worker has in flight, received and not
// settled: of each key one runs at a time, in order, and keys run in parallel. It is
// not safe for concurrent use.
type HandleQueue struct {
	ready  []*waybill.Delivery            // may run now, oldest first
	behind map[string][]*waybill.Delivery // per ready or running key: the deliveries behind it
	share  int                            // limit of one key in flight; 0 means unlimited
	count  int                            // in flight, including those being run or settled
}

// NewHandleQueue returns an empty queue that takes up to share deliveries of one key,
// or any number with 0.
func NewHandleQueue(share int) *HandleQueue {
	return &HandleQueue{behind: map[string][]*waybill.Delivery{}, share: share}
}

// Count returns the number of deliveries in flight.
func (q *HandleQueue) Count() int { return q.count }

// Add takes d in. It reports false when its key has its share already: d has
// to go back, so that one slow key cannot fill the queue.
func (q *HandleQueue) Add(d *waybill.Delivery) bool {
	q.count++
	key := d.Record.Key
	queue, busy := q.behind[key]
	switch {
	case key == "":
		q.ready = append(q.ready, d)
	case !busy:
		q.behind[key] = nil
		q.ready = append(q.ready, d)
	case q.share > 0 && len(queue) >= q.share-1:
		return false
	default:
		q.behind[key] = append(queue, d)
	}
	return true
}

// Hold counts a delivery that is in flight without an order, until it is settled.
func (q *HandleQueue) Hold() { q.count++ }

// Return makes d, which has been taken, ready again, after the deliveries of other keys.
func (q *HandleQueue) Return(d *waybill.Delivery) { q.ready = append(q.ready, d) }

// Take returns the next delivery to run, or nil.
func (q *HandleQueue) Take() *waybill.Delivery {
	if len(q.ready) == 0 {
		return nil
	}
	d := q.ready[0]
	q.ready[0] = nil
	q.ready = q.ready[1:]
	return d
}

// Succeeded makes the next delivery of d's key ready. d stays in flight until it is
// settled.
func (q *HandleQueue) Succeeded(d *waybill.Delivery) {
	key := d.Record.Key
	queue := q.behind[key] // none without a key
	if len(queue) == 0 {
		delete(q.behind, key)
		return
	}
	q.behind[key] = queue[1:]
	q.ready = append(q.ready, queue[0])
}

// Failed returns the deliveries behind d, which must go back to the transport with
// d and must not run before it. The key stays busy until Forget.
func (q *HandleQueue) Failed(d *waybill.Delivery) []*waybill.Delivery {
	queue := q.behind[d.Record.Key]
	if len(queue) > 0 {
		q.behind[d.Record.Key] = nil
	}
	return queue
}

// Forget ends a key whose deliveries have gone back. What arrived for it
// meanwhile is returned, to go back too.
func (q *HandleQueue) Forget(d *waybill.Delivery) []*waybill.Delivery {
	queue := q.behind[d.Record.Key]
	delete(q.behind, d.Record.Key)
	return queue
}

// Rest returns all that has not begun to run, and forgets it.
func (q *HandleQueue) Rest() []*waybill.Delivery {
	all := q.ready
	q.ready = nil
	for key, queue := range q.behind {
		all = append(all, queue...)
		q.behind[key] = nil
	}
	return all
}

// Settled takes n deliveries out.
func (q *HandleQueue) Settled(n int) { q.count -= n }
