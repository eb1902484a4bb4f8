package readpos

import "time"

// raiseAfter is how many ids a low watermark may be behind before it is raised: relays
// of other processes may have published the rows between, and their dead versions are
// read by each claim until the server has purged them.
const raiseAfter = 10_000

// Behind returns, at most once a second, the buckets whose low watermarks are far behind the next
// id that an earlier claim has read. The caller raises the watermark of a bucket if, in this
// order, no dispatcher had its lock and one snapshot shows no row above its watermark and
// nothing that is blocked: each lower id has been committed or rolled back by then.
func (p *Positions) Behind(v *View, now time.Time) (buckets []int16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.raised) < time.Second {
		return nil
	}
	for b, at := range v.buckets {
		if v.next-at.lowWatermark > raiseAfter {
			buckets = append(buckets, int16(b))
		}
	}
	if len(buckets) > 0 {
		p.raised = now
	}
	return buckets
}

// Raise moves low watermarks up to the next id that was known when v began.
func (p *Positions) Raise(v *View, buckets []int16) {
	for _, b := range buckets {
		p.update(v, b, func(at *position) { at.lowWatermark = max(at.lowWatermark, v.next-1) })
	}
}
