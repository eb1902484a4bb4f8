package wayamqp

import (
	"cmp"
	"slices"
)

// acks decides how deliveries are acknowledged on one channel: whatever lies in
// one piece at the front by a single acknowledgement, the rest one by one. It is
// pure: it sends nothing. It holds at most one run more
// than there are deliveries in flight.
type acks struct {
	done []tagRun // acknowledged: in order, with gaps between them; the first begins at 0
}

// A tagRun is the tags of consecutive deliveries.
type tagRun struct{ from, to uint64 }

// add takes tags, none of which was acknowledged before, and returns what to
// send: one for all up to upto, unless that is 0, and then one for each of single.
// A tag that was not added is never covered: its delivery is in flight.
func (a *acks) add(tags []uint64) (upto uint64, single []uint64) {
	if a.done == nil {
		a.done = []tagRun{{}}
	}
	tags = slices.Sorted(slices.Values(tags))
	for _, tag := range tags {
		a.join(tag)
	}
	// The front itself may have been acknowledged before, and the broker closes
	// the channel for a tag it does not know: the highest new one is named.
	n, beyond := slices.BinarySearch(tags, a.done[0].to)
	if beyond {
		n++
	}
	if n > 0 {
		upto = tags[n-1]
	}
	return upto, tags[n:]
}

// join adds a tag to the run that it lies at, and that run to the next if it closes the gap.
func (a *acks) join(tag uint64) {
	next, _ := slices.BinarySearchFunc(a.done, tag, func(r tagRun, tag uint64) int { return cmp.Compare(r.from, tag) })
	if next == len(a.done) || a.done[next].from != tag+1 {
		a.done = slices.Insert(a.done, next, tagRun{tag, tag})
	} else {
		a.done[next].from = tag
	}
	if before := &a.done[next-1]; before.to+1 == tag { // the first run begins before any tag
		before.to = a.done[next].to
		a.done = slices.Delete(a.done, next, next+1)
	}
}
