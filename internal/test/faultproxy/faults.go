package faultproxy

import (
	"bytes"
	"fmt"
	"net"
	"time"
)

// A Direction is one of the two that bytes go.
type Direction int

const (
	ToServer Direction = iota
	ToClient
)

func (d Direction) String() string { return [...]string{"to server", "to client"}[d] }

// An Action is the result of a look at bytes.
type Action int

const (
	Pass          Action = iota // deliver them
	CutBefore                   // reset the connection, none of them is delivered
	CutAfterThese               // deliver them, then reset the connection
)

// faults are the orders that stand, guarded by Proxy.mu.
type faults struct {
	latency time.Duration
	hole    bool
	swallow bool
	look    func(Direction, []byte) Action
	cut     *cut
}

// A cut is an order to reset one connection after n bytes more.
type cut struct {
	n    int64
	dir  Direction
	from map[*link]int64 // bytes carried by the connections when it was given
}

// SetLatency delays the bytes of each direction by d from now on. Zero means no
// delay.
func (p *Proxy) SetLatency(d time.Duration) {
	p.change(func(f *faults) { f.latency = d })
}

// BlackHole on keeps connections, also new ones, and moves no byte in either
// direction: sent bytes wait in the sender's socket until that is full. Off
// lets them flow. Bytes that are being delivered at that moment may still arrive.
func (p *Proxy) BlackHole(on bool) {
	p.change(func(f *faults) {
		if on && !f.hole {
			p.counts.BlackHoles++
		}
		f.hole = on
	})
}

// SwallowReplies on reads and drops the server's replies, and its FIN or RST. Off does not bring
// them back, so connections that lost some are good for nothing afterwards.
func (p *Proxy) SwallowReplies(on bool) {
	p.change(func(f *faults) { f.swallow = on })
}

// SwallowRepliesTo has SwallowReplies begin with the reply to the first bytes to the server that
// contain word.
func (p *Proxy) SwallowRepliesTo(word string) {
	p.OnBytes(func(dir Direction, b []byte) Action {
		if dir == ToServer && bytes.Contains(b, []byte(word)) {
			p.SwallowReplies(true) // before they are delivered
		}
		return Pass
	})
}

// OnBytes has look judge the bytes before they are delivered; nil ends that.
// A look gets what one read returned, so a pattern can straddle two; it must
// not keep or change the bytes and is called from many goroutines.
func (p *Proxy) OnBytes(look func(dir Direction, b []byte) Action) {
	p.change(func(f *faults) { f.look = look })
}

// CutAfter resets the first connection that has carried n more bytes in dir,
// exactly there: those are delivered and no more. It strikes once; a later call
// replaces an order that did not strike yet.
func (p *Proxy) CutAfter(n int64, dir Direction) {
	p.change(func(f *faults) {
		f.cut = &cut{n: n, dir: dir, from: map[*link]int64{}}
		for l := range p.links {
			f.cut.from[l] = l.carried[dir]
		}
	})
}

// Refuse on closes the port, so that no client connects; connections that
// exist stay. Off opens it again. It panics if another process took the port in the
// meantime.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		if p.listener != nil {
			p.counts.Refusals++
		}
		p.shut()
		return
	}
	if p.closed || p.listener != nil {
		return
	}
	l, err := net.Listen("tcp4", p.addr)
	if err != nil {
		panic(fmt.Sprintf("faultproxy: %v", err))
	}
	p.open(l)
}

// Reset ends all connections with RST, to the client and to the server, and
// returns how many.
func (p *Proxy) Reset() int {
	p.mu.Lock()
	links := p.all()
	p.mu.Unlock()
	n := 0
	for _, l := range links {
		if l.reset() {
			n++
		}
	}
	return n
}

// HalfClose sends all clients a FIN, after which they receive no more, while bytes
// from them still arrive. It returns the number of clients.
func (p *Proxy) HalfClose() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for l := range p.links {
		if !l.deaf && l.client.CloseWrite() == nil {
			l.deaf = true
			n++
		}
	}
	p.counts.HalfCloses += n
	return n
}

func (p *Proxy) change(f func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.faults)
	close(p.changed)
	p.changed = make(chan struct{})
}
