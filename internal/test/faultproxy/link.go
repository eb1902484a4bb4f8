package faultproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// A link is one connection through the proxy, in two halves.
type link struct {
	proxy  *Proxy
	client *net.TCPConn
	ctx    context.Context // done when the link ends
	end    context.CancelFunc

	carried [2]int64 // bytes let through by Direction, guarded by proxy.mu
	deaf    bool     // the client was sent a FIN, guarded by proxy.mu

	mu     sync.Mutex
	server *net.TCPConn // nil until the target is reached, guarded by mu
	over   bool         // guarded by mu
	hard   bool         // over by RST, guarded by mu
}

// run carries bytes until both directions or the link have ended.
func (l *link) run() {
	defer l.close()
	if !l.connect() {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.carry(ToServer, l.client, l.server) })
	wg.Go(func() { l.carry(ToClient, l.server, l.client) })
	wg.Wait()
}

// connect reaches the target, which a black hole delays. A client whose target
// is not there is reset.
func (l *link) connect() bool {
	if !l.open() {
		return false
	}
	// Not with ctx, which would end a connection in the making with FIN where
	// RST is wanted.
	server, err := net.DialTimeout("tcp", l.proxy.target, 5*time.Second)
	if err != nil {
		l.abort()
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = server.(*net.TCPConn)
	if l.over {
		hangUp(l.server, l.hard)
		return false
	}
	return true
}

// A chunk is what one read returned, to be delivered when it is due.
type chunk struct {
	bytes []byte
	due   time.Time
}

// carry reads and delivers on two goroutines, so that latency delays bytes and
// does not thin them out.
func (l *link) carry(dir Direction, from, to *net.TCPConn) {
	chunks := make(chan chunk, 64)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(chunks)
		l.read(dir, from, chunks)
	})
	l.deliver(dir, chunks, to)
	wg.Wait()
}

// read ends with the bytes of from, or with the link, which it resets if the
// sender broke off.
func (l *link) read(dir Direction, from *net.TCPConn, chunks chan<- chunk) {
	for l.open() {
		b := make([]byte, 16<<10)
		n, err := from.Read(b)
		if n > 0 {
			select {
			case chunks <- chunk{b[:n], time.Now().Add(l.proxy.latency())}:
			case <-l.ctx.Done():
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !l.proxy.swallows(dir) {
				l.abort()
			}
			return
		}
	}
}

// deliver writes chunks as the faults allow, and ends with a FIN.
func (l *link) deliver(dir Direction, chunks <-chan chunk, to *net.TCPConn) {
	for c := range chunks {
		if !l.wait(time.Until(c.due)) || !l.open() {
			return
		}
		b, cut := l.proxy.judge(l, dir, c.bytes)
		if len(b) > 0 {
			n, err := to.Write(b)
			if err != nil && !l.proxy.lost(l, dir, int64(len(b)-n)) {
				l.abort()
				return
			}
		}
		if cut {
			l.flush(to)
			l.reset()
			return
		}
	}
	if l.open() && !l.proxy.swallows(dir) {
		_ = to.CloseWrite()
	}
}

// open waits while there is a black hole and reports whether the link is still
// there.
func (l *link) open() bool {
	for {
		hole, changed := l.proxy.hole()
		if !hole {
			return l.ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-l.ctx.Done():
			return false
		}
	}
}

// wait reports whether the link is still there after d.
func (l *link) wait(d time.Duration) bool {
	if d <= 0 {
		return l.ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// flush waits until the peer has acknowledged all written bytes, since RST
// discards the rest. A peer that does not read has five seconds.
func (l *link) flush(to *net.TCPConn) {
	for deadline := time.Now().Add(5 * time.Second); unsent(to) > 0 && time.Now().Before(deadline); {
		if !l.wait(time.Millisecond) {
			return
		}
	}
}

// reset ends both halves with RST because the proxy was told to. It reports
// false if the link was over already.
func (l *link) reset() bool {
	return l.finish(true, func() {
		l.proxy.mu.Lock()
		defer l.proxy.mu.Unlock()
		l.proxy.counts.Resets++
	})
}

// abort passes on that one half broke.
func (l *link) abort() { l.finish(true, func() {}) }

func (l *link) close() { l.finish(false, func() {}) }

// finish calls before, if it is the first, ahead of anything the peers can see.
func (l *link) finish(hard bool, before func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return false
	}
	before()
	l.over, l.hard = true, hard
	l.end()
	hangUp(l.client, hard)
	if l.server != nil {
		hangUp(l.server, hard)
	}
	return true
}

func hangUp(conn *net.TCPConn, hard bool) {
	if hard {
		_ = conn.SetLinger(0)
	}
	_ = conn.Close()
}
