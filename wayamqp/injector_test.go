package wayamqp

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// An injector stands between a client and the broker and sends to the client, in
// the broker's name, methods that a test could not make the broker send.
type injector struct {
	tb     testing.TB
	target string
	listen net.Listener
	wg     sync.WaitGroup

	mu    sync.Mutex // held while a frame is written to a client
	conns []net.Conn // pairs: client, broker
}

// inject returns an injector for url, and the URL that leads through it.
func inject(tb testing.TB, broker string) (*injector, string) {
	tb.Helper()
	u, err := url.Parse(broker)
	if err != nil {
		tb.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	in := &injector{tb: tb, target: u.Host, listen: l}
	in.wg.Go(in.accept)
	tb.Cleanup(func() {
		_ = l.Close()
		in.mu.Lock()
		for _, c := range in.conns {
			_ = c.Close()
		}
		in.mu.Unlock()
		in.wg.Wait()
	})
	u.Host = l.Addr().String()
	return in, u.String()
}

func (in *injector) accept() {
	for {
		client, err := in.listen.Accept()
		if err != nil {
			return
		}
		broker, err := net.Dial("tcp", in.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		in.mu.Lock()
		in.conns = append(in.conns, client, broker)
		in.mu.Unlock()
		in.wg.Go(func() {
			_, _ = io.Copy(broker, client)
			_ = broker.Close()
		})
		in.wg.Go(func() {
			in.frames(client, broker)
			_ = client.Close()
		})
	}
}

// frames copies whole frames.
func (in *injector) frames(client, broker net.Conn) {
	head := make([]byte, 7)
	for {
		if _, err := io.ReadFull(broker, head); err != nil {
			return
		}
		frame := make([]byte, 7+binary.BigEndian.Uint32(head[3:])+1)
		copy(frame, head)
		if _, err := io.ReadFull(broker, frame[7:]); err != nil {
			return
		}
		in.mu.Lock()
		_, err := client.Write(frame)
		in.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// say sends a method of the class connection to the last client.
func (in *injector) say(method uint16, args ...any) {
	in.tb.Helper()
	payload := binary.BigEndian.AppendUint16([]byte{0, 10}, method)
	for _, arg := range args {
		switch v := arg.(type) {
		case int:
			payload = binary.BigEndian.AppendUint16(payload, uint16(v))
		case string:
			payload = append(append(payload, byte(len(v))), v...)
		}
	}
	frame := binary.BigEndian.AppendUint32([]byte{1, 0, 0}, uint32(len(payload)))
	frame = append(append(frame, payload...), 0xCE)
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, err := in.conns[len(in.conns)-2].Write(frame); err != nil {
		in.tb.Fatal(err)
	}
}

// Methods that the broker may send.
func (in *injector) blocked(reason string) { in.say(60, reason) }
func (in *injector) unblocked()            { in.say(61) }
func (in *injector) close(code int, text string) {
	in.say(50, code, text, 0, 0)
}
