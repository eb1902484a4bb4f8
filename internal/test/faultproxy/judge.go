package faultproxy

import "time"

// judge returns the bytes of b that may be delivered, and whether the link is cut
// behind them. They count as carried at once, so that an order that arrives while
// they are written begins behind them.
func (p *Proxy) judge(l *link, dir Direction, b []byte) (pass []byte, reset bool) {
	p.mu.Lock()
	dropped := dir == ToClient && (p.faults.swallow || l.deaf)
	if dropped {
		p.counts.Swallowed += int64(len(b))
	}
	look := p.faults.look
	p.mu.Unlock()
	if dropped {
		return nil, false
	}
	if look != nil { // without the lock, so that it may call methods of p
		switch look(dir, b) {
		case CutBefore:
			return nil, true
		case CutAfterThese:
			reset = true
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.faults.cut; c != nil && c.dir == dir {
		left := max(0, c.n-(l.carried[dir]-c.from[l]))
		if int64(len(b)) >= left {
			p.faults.cut = nil
			b, reset = b[:left], true
		}
	}
	l.carried[dir] += int64(len(b))
	*p.counts.bytes(dir) += int64(len(b))
	return b, reset
}

// swallows reports whether the end of a direction, as its bytes, is not passed on.
func (p *Proxy) swallows(dir Direction) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return dir == ToClient && p.faults.swallow
}

// lost takes back the count of n bytes that could not be written. It reports
// whether the link may go on nevertheless.
func (p *Proxy) lost(l *link, dir Direction, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	*p.counts.bytes(dir) -= n
	return dir == ToClient && l.deaf
}

func (p *Proxy) hole() (on bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults.hole, p.changed
}

func (p *Proxy) latency() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults.latency
}
