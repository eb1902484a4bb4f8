package faultproxy

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/waybill-go/waybill/internal/test/testserver/port"
)

// A Proxy forwards connections to one target. Its methods may be called
// concurrently.
type Proxy struct {
	target string
	addr   string
	wg     sync.WaitGroup // of the goroutines for accepting and for links

	mu       sync.Mutex // guards the fields below
	listener net.Listener
	links    map[*link]bool
	faults   faults
	changed  chan struct{} // closed and replaced whenever faults change
	counts   Counts
	closed   bool
}

// Start listens on a free loopback port for connections to target, which is
// host:port. The target need not be there yet.
func Start(target string) (*Proxy, error) {
	l, err := port.Listen()
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	p := &Proxy{target: target, addr: l.Addr().String(), links: map[*link]bool{}, changed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open(l)
	return p, nil
}

// Addr returns host:port of the proxy.
func (p *Proxy) Addr() string { return p.addr }

// Close ends the proxy and its connections, and returns when nothing is left of
// them.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.shut()
	links := p.all()
	p.mu.Unlock()
	for _, l := range links {
		l.close()
	}
	p.wg.Wait()
}

// open accepts connections from listener. The caller holds mu.
func (p *Proxy) open(listener net.Listener) {
	p.listener = listener
	p.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.serve(conn.(*net.TCPConn))
		}
	})
}

// shut accepts no more connections. The caller holds mu.
func (p *Proxy) shut() {
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
}

// serve starts the goroutines of a connection.
func (p *Proxy) serve(client *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener == nil {
		_ = client.SetLinger(0)
		_ = client.Close()
		return
	}
	ctx, end := context.WithCancel(context.Background())
	l := &link{proxy: p, client: client, ctx: ctx, end: end}
	p.links[l] = true
	p.counts.Connections++
	p.wg.Go(func() {
		l.run()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
		if p.faults.cut != nil {
			delete(p.faults.cut.from, l)
		}
	})
}

// all returns the connections of now. The caller holds mu.
func (p *Proxy) all() []*link {
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	return links
}
