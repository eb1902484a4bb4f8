package wayamqp

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// Bytes that the kernel still has to send when a connection is cut would be
// published after the deadline.
func TestCutSendsNothingMore(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = peer.Close() }()
	_ = raw.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	_, _ = raw.Write(make([]byte, 64<<20)) // until nothing more fits
	(&conn{raw: raw}).cut(context.DeadlineExceeded)
	if n, err := io.Copy(io.Discard, peer); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the peer read %d bytes and then %v, want a reset", n, err)
	}
}

// The context ended before the record was pending: no expire would see the record
// and cut the connection for it.
func TestNothingIsSentAfterTheContextHasEnded(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	p := b.publisher(Config{Exchange: "events"})
	l, err := p.connected(within(t, 10*time.Second))
	b.must(err)
	o, err := l.channel(within(t, 10*time.Second), "events")
	b.must(err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	results := make(chan outbox.Result, 20)
	for range 20 {
		o.slots <- struct{}{}
		o.send(ended, &publish{batch: newPublishBatch(&p.cfg, results, 1), exchange: "events", key: "k"}, amqp.Publishing{})
		if r := <-results; !errors.Is(r.Err, waybill.ErrUnavailable) {
			t.Fatalf("got %v, want ErrUnavailable", r.Err)
		}
	}
	b.must(p.Send(within(t, 10*time.Second), record("order.placed", 1)))
	if n := b.ready("orders"); n != 1 {
		t.Errorf("the queue has %d messages, want 1", n)
	}
}
