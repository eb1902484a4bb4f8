package wayamqp

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

// A written is a connection that keeps the bytes of each Write.
type written struct {
	net.Conn
	mu     sync.Mutex
	writes [][]byte
	err    error
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	w.writes = append(w.writes, bytes.Clone(b))
	return len(b), nil
}

func (w *written) all() []byte { return bytes.Join(w.writes, nil) }

func TestHeldSocketWritesEverythingOnceAndInOrder(t *testing.T) {
	to := &written{}
	s := newSocket(to)
	var want []byte
	write := func(n int) {
		b := bytes.Repeat([]byte{byte(len(want))}, n)
		want = append(want, b...)
		if got, err := s.Write(b); got != n || err != nil {
			t.Fatalf("Write of %d bytes = %d, %v", n, got, err)
		}
	}
	write(10)
	if len(to.writes) != 1 {
		t.Fatalf("%d writes of a socket that is not held, want 1", len(to.writes))
	}
	s.hold()
	s.hold()
	for range 100 {
		write(200)
	}
	if err := s.release(); err != nil || len(to.writes) != 1 {
		t.Fatalf("release = %v after %d writes, want none until the last", err, len(to.writes))
	}
	write(maxHeld - 100) // does not fit
	write(2 * maxHeld)   // never does
	write(1)
	if err := s.release(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(to.all(), want) {
		t.Errorf("%d bytes went out, want %d in their order", len(to.all()), len(want))
	}
	if len(to.writes) > 5 {
		t.Errorf("%d writes, want the small ones gathered", len(to.writes))
	}
}

func TestSocketThatFailedTakesNothingMore(t *testing.T) {
	broken := errors.New("broken pipe")
	to := &written{err: broken}
	s := newSocket(to)
	s.hold()
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatalf("Write = %v, want nothing before it is written", err)
	}
	if err := s.release(); !errors.Is(err, broken) {
		t.Errorf("release = %v, want %v", err, broken)
	}
	to.err = nil
	if _, err := s.Write([]byte("y")); !errors.Is(err, broken) {
		t.Errorf("Write = %v, want %v: what was held is lost", err, broken)
	}
}

// Kills: confirmations that are found by looking now and then, because nothing
// tells when the library has handled them.
func TestConfirmationIsNoticedAtOnce(t *testing.T) {
	broker := newBroker(t)
	broker.topic("events", "orders")
	p := broker.publisher(Config{Exchange: "events"})
	results := make(chan outbox.Result, 1)
	const n = 40
	took := make([]time.Duration, n)
	for i := range n {
		start := time.Now()
		p.Publish(t.Context(), []outbox.Item{{Record: record("order.placed", i)}}, results)
		if r := <-results; r.Err != nil {
			t.Fatal(r.Err)
		}
		took[i] = time.Since(start)
	}
	// After the first, which began at any time, each would wait for the next look.
	slices.Sort(took)
	if took[n/8] > resolveAnyhow*8/10 {
		t.Errorf("messages one by one took %v: as long as looking every %v", took, resolveAnyhow)
	}
}
