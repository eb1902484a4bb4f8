package wayamqp

import (
	"net"
	"sync"
)

// maxHeld is how many bytes a held socket gathers before it writes them.
const maxHeld = 32 << 10

// A socket lets the messages of one call go out in few writes, and tells when
// the library has handled all received bytes. It is the library's net.Conn.
type socket struct {
	net.Conn
	// handled receives when all that was read so far has been handled: the
	// library's reader asks for more only then.
	handled chan struct{}

	mu    sync.Mutex // held while writing
	holds int
	held  []byte
	err   error // of a write, which ends the connection
}

func newSocket(c net.Conn) *socket { return &socket{Conn: c, handled: make(chan struct{}, 1)} }

// Read implements net.Conn.
func (s *socket) Read(b []byte) (int, error) {
	select {
	case s.handled <- struct{}{}:
	default:
	}
	return s.Conn.Read(b)
}

// Write implements net.Conn. While the socket is held an error may come with a
// later call.
func (s *socket) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && len(s.held)+len(b) > maxHeld {
		s.flush()
	}
	switch {
	case s.err != nil:
		return 0, s.err
	case s.holds == 0 || len(b) > maxHeld:
		n, err := s.Conn.Write(b)
		s.err = err
		return n, err
	}
	s.held = append(s.held, b...)
	return len(b), nil
}

// hold makes writes wait for release. A call that may wait for the broker's answer
// must not be made meanwhile.
func (s *socket) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds++
}

// release ends one hold; the last one writes the gathered bytes.
func (s *socket) release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds--; s.holds == 0 && s.err == nil {
		s.flush()
	}
	return s.err
}

// flush writes the gathered bytes. mu is held.
func (s *socket) flush() {
	if len(s.held) > 0 {
		_, s.err = s.Conn.Write(s.held)
		s.held = s.held[:0]
	}
}
