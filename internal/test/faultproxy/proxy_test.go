package faultproxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBytesPassUntilBothSidesAreDone(t *testing.T) {
	p, client, server := pair(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	go func() {
		_, _ = client.Write(big)
		_ = client.CloseWrite()
	}()
	if got, err := io.ReadAll(server); err != nil || !bytes.Equal(got, big) {
		t.Fatalf("server read %d bytes, %v, want the %d that were sent", len(got), err, len(big))
	}
	send(t, server, "bye") // the other direction is still open
	if err := server.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(client); err != nil || string(got) != "bye" {
		t.Errorf("client read %q, %v, want bye and the end", got, err)
	}
	if want := (Counts{Connections: 1, ToServer: int64(len(big)), ToClient: 3}); p.Counts() != want {
		t.Errorf("Counts = %+v, want %+v", p.Counts(), want)
	}
}

func TestResetOfOneSideReachesTheOther(t *testing.T) {
	p, client, server := pair(t)
	if err := server.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	server.Close()
	wantReset(t, "client", client)
	if got := p.Counts().Resets; got != 0 {
		t.Errorf("Resets = %d, want 0, since the proxy injected none", got)
	}
}

func TestClientOfAMissingTargetIsReset(t *testing.T) {
	gone := listen(t)
	gone.Close()
	p := start(t, gone.Addr().String())
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil { // the reset can be faster than Dial
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Dial: %v, want a connection or a reset", err)
		}
		return
	}
	wantReset(t, "client", prepare(t, conn))
}

func TestCloseEndsEverything(t *testing.T) {
	p, client, server := pair(t)
	p.BlackHole(true)
	waiting := dial(t, p)
	p.Close()
	p.Close() // twice does no harm
	for name, conn := range map[string]net.Conn{"client": client, "server": server} {
		if b, err := io.ReadAll(conn); err != nil || len(b) > 0 {
			t.Errorf("%s read %q, %v, want the end", name, b, err)
		}
	}
	if _, err := waiting.Read(make([]byte, 1)); err == nil {
		t.Error("a connection in a black hole survives Close")
	}
	if conn, err := net.Dial("tcp", p.Addr()); err == nil {
		conn.Close()
		t.Error("a closed proxy accepts a connection")
	}
}

// pair returns a proxy and both ends of a connection through it.
func pair(t *testing.T) (p *Proxy, client, server *net.TCPConn) {
	t.Helper()
	l := listen(t)
	p = start(t, l.Addr().String())
	client, server = through(t, p, l)
	return p, client, server
}

func through(t *testing.T, p *Proxy, l net.Listener) (client, server *net.TCPConn) {
	t.Helper()
	client = dial(t, p)
	return client, accept(t, l)
}

func start(t *testing.T, target string) *Proxy {
	t.Helper()
	p, err := Start(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func dial(t *testing.T, p *Proxy) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return prepare(t, conn)
}

func accept(t *testing.T, l net.Listener) *net.TCPConn {
	t.Helper()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return prepare(t, conn)
}

// prepare closes conn at the end of the test, and bounds its reads and writes.
func prepare(t *testing.T, conn net.Conn) *net.TCPConn {
	t.Helper()
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

func send(t *testing.T, to net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(to, s); err != nil {
		t.Fatal(err)
	}
}

func wantBytes(t *testing.T, who string, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("%s read %q, %v, want %q", who, got[:n], err, want)
	}
}

func wantReset(t *testing.T, who string, conn net.Conn) {
	t.Helper()
	if b, err := io.ReadAll(conn); len(b) > 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%s read %q, %v, want nothing and a reset", who, b, err)
	}
}

// wantSilence gives up its patience after a moment, and the deadline with it.
func wantSilence(t *testing.T, who string, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	b := make([]byte, 1)
	if n, err := conn.Read(b); n > 0 || err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("%s read %q, %v, want nothing yet", who, b[:n], err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
}
