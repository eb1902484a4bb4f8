package wayamqp

import "slices"

// acks decides how deliveries are acknowledged on one channel: whatever lies in
// one piece at the front by a single acknowledgement, the rest one by one. It is
// pure: it sends nothing.
type acks struct {
	front uint64          // up to here all are acknowledged
	ahead map[uint64]bool // beyond front: acknowledged one by one
}

// add takes tags, none of which was acknowledged before, and returns what to
// send: one for all up to upto, unless that is 0, and then one for each of single.
// A tag that was not added is never covered: its delivery is in flight.
func (a *acks) add(tags []uint64) (upto uint64, single []uint64) {
	if a.ahead == nil {
		a.ahead = map[uint64]bool{}
	}
	tags = slices.Sorted(slices.Values(tags))
	for _, tag := range tags {
		a.ahead[tag] = true
	}
	for a.ahead[a.front+1] {
		a.front++
		delete(a.ahead, a.front)
	}
	// The front itself may have been acknowledged before, and the broker closes
	// the channel for a tag it does not know: the highest new one is named.
	n, beyond := slices.BinarySearch(tags, a.front)
	if beyond {
		n++
	}
	if n > 0 {
		upto = tags[n-1]
	}
	return upto, tags[n:]
}
