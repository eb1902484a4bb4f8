package faultproxy

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
)

// A Hold makes connections, without a proxy, of which one is held: the first
// that is to write certain bytes stops there, as if its process were frozen,
// until Release.
type Hold struct {
	// Reached is closed when a connection has stopped.
	Reached <-chan struct{}

	word    []byte
	struck  atomic.Bool
	reached chan struct{}
	over    chan struct{}
	release func()
}

// HoldAt returns a Hold for a connection that is to write word.
func HoldAt(word string) *Hold {
	h := &Hold{word: []byte(word), reached: make(chan struct{}), over: make(chan struct{})}
	h.Reached, h.release = h.reached, sync.OnceFunc(func() { close(h.over) })
	return h
}

// Dial is a net.Dialer's DialContext.
func (h *Hold) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return holdable{conn, h}, nil
}

// Release lets the connection go on.
func (h *Hold) Release() { h.release() }

type holdable struct {
	net.Conn
	hold *Hold
}

func (c holdable) Write(b []byte) (int, error) {
	if bytes.Contains(b, c.hold.word) && c.hold.struck.CompareAndSwap(false, true) {
		close(c.hold.reached)
		<-c.hold.over
	}
	return c.Conn.Write(b)
}
