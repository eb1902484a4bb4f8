package faultproxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestResetIsSeenByBothSides(t *testing.T) {
	l := listen(t)
	p := start(t, l.Addr().String())
	client, server := through(t, p, l)
	client2, server2 := through(t, p, l)
	if n := p.Reset(); n != 2 {
		t.Errorf("Reset = %d, want 2", n)
	}
	for _, conn := range []net.Conn{client, client2} {
		wantReset(t, "client", conn)
	}
	for _, conn := range []net.Conn{server, server2} {
		wantReset(t, "server", conn)
	}
	if n := p.Reset(); n != 0 || p.Counts().Resets != 2 {
		t.Errorf("second Reset = %d with %d counted, want 0 with 2", n, p.Counts().Resets)
	}
	client, server = through(t, p, l)
	send(t, client, "new")
	wantBytes(t, "server", server, "new")
}

func TestLatencyDelaysBothDirectionsAndLosesNoSpeed(t *testing.T) {
	p, client, server := pair(t)
	const latency = 40 * time.Millisecond
	p.SetLatency(latency)
	begin := time.Now()
	send(t, client, "ping")
	wantBytes(t, "server", server, "ping")
	if took := time.Since(begin); took < latency {
		t.Errorf("to the server took %v, want at least %v", took, latency)
	}
	begin = time.Now()
	send(t, server, "pong")
	wantBytes(t, "client", client, "pong")
	if took := time.Since(begin); took < latency {
		t.Errorf("to the client took %v, want at least %v", took, latency)
	}

	// 50 delays one after the other would be 2 s, each time.
	took := time.Hour
	for tries := 0; took > 1500*time.Millisecond && tries < 5; tries++ {
		begin = time.Now()
		go func() {
			for range 50 {
				_, _ = client.Write([]byte("x"))
				time.Sleep(time.Millisecond)
			}
		}()
		wantBytes(t, "server", server, strings.Repeat("x", 50))
		took = time.Since(begin)
	}
	if took > 1500*time.Millisecond {
		t.Errorf("50 bytes in a row took %v, want the delay once", took)
	}
}

func TestBlackHoleMovesNothingUntilItIsOff(t *testing.T) {
	l := listen(t)
	p := start(t, l.Addr().String())
	client, server := through(t, p, l)
	p.BlackHole(true)
	send(t, client, "to server")
	send(t, server, "to client")
	late := dial(t, p) // is accepted and hears nothing
	send(t, late, "late")
	wantSilence(t, "server", server)
	wantSilence(t, "client", client)
	wantSilence(t, "late client", late)

	p.BlackHole(false)
	wantBytes(t, "server", server, "to server")
	wantBytes(t, "client", client, "to client")
	wantBytes(t, "late server", accept(t, l), "late")
	if got := p.Counts().BlackHoles; got != 1 {
		t.Errorf("BlackHoles = %d, want 1", got)
	}
}

func TestBlackHoleFillsTheSendersSocket(t *testing.T) {
	p, client, server := pair(t)
	p.BlackHole(true)
	_ = client.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	n, err := io.Copy(client, io.LimitReader(zeros{}, 1<<30))
	if err == nil {
		t.Fatalf("a black hole took %d bytes", n)
	}
	p.BlackHole(false)
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.Copy(io.Discard, server); err != nil || got != n {
		t.Errorf("server read %d bytes, %v, want the %d that were sent", got, err, n)
	}
}

func TestResetReachesConnectionsInABlackHole(t *testing.T) {
	p, client, server := pair(t)
	p.BlackHole(true)
	send(t, client, "lost")
	late := dial(t, p)
	for deadline := time.Now().Add(10 * time.Second); p.Counts().Connections < 2 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if n := p.Reset(); n != 2 {
		t.Errorf("Reset = %d, want 2", n)
	}
	wantReset(t, "client", client)
	wantReset(t, "late client", late)
	wantReset(t, "server", server)
}

func TestHalfCloseEndsOnlyWhatTheClientHears(t *testing.T) {
	p, client, server := pair(t)
	if n := p.HalfClose(); n != 1 {
		t.Errorf("HalfClose = %d, want 1", n)
	}
	if b, err := io.ReadAll(client); err != nil || len(b) > 0 {
		t.Errorf("client read %q, %v, want the end", b, err)
	}
	send(t, server, "nobody hears this")
	send(t, client, "still here")
	wantBytes(t, "server", server, "still here")
	if n := p.HalfClose(); n != 0 || p.Counts().HalfCloses != 1 {
		t.Errorf("second HalfClose = %d with %d counted, want 0 with 1", n, p.Counts().HalfCloses)
	}
}

func TestSwallowedRepliesNeverArrive(t *testing.T) {
	p, client, server := pair(t)
	p.SwallowReplies(true)
	send(t, client, "request")
	wantBytes(t, "server", server, "request")
	send(t, server, "swallowed")
	wantSilence(t, "client", client)
	p.SwallowReplies(false)
	send(t, server, "heard")
	wantBytes(t, "client", client, "heard")
	if c := p.Counts(); c.Swallowed != 9 || c.ToClient != 5 {
		t.Errorf("Swallowed, ToClient = %d, %d, want 9, 5", c.Swallowed, c.ToClient)
	}
	p.SwallowReplies(true)
	if err := server.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	wantSilence(t, "client, of the server's end", client)
}

func TestRefusedConnectionsNeverExist(t *testing.T) {
	l := listen(t)
	p := start(t, l.Addr().String())
	client, server := through(t, p, l)
	p.Refuse(true)
	if conn, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("Dial = %v, %v, want that it is refused", conn, err)
	}
	send(t, client, "stays")
	wantBytes(t, "server", server, "stays")
	p.Refuse(false)
	client, server = through(t, p, l)
	send(t, server, "welcome")
	wantBytes(t, "client", client, "welcome")
	if c := p.Counts(); c.Refusals != 1 || c.Connections != 2 {
		t.Errorf("Refusals, Connections = %d, %d, want 1, 2", c.Refusals, c.Connections)
	}
}

func TestCutAfterDeliversExactlySoManyBytes(t *testing.T) {
	for _, test := range []struct {
		dir   Direction
		n     int
		sends []string
		want  string
	}{
		{ToServer, 0, []string{"abc"}, ""},
		{ToServer, 2, []string{"abc"}, "ab"},
		{ToServer, 3, []string{"abc"}, "abc"}, // no fourth byte is needed
		{ToServer, 5, []string{"abc", "def"}, "abcde"},
		{ToClient, 4, []string{"abc", "def"}, "abcd"},
	} {
		t.Run(test.dir.String()+" "+test.want, func(t *testing.T) {
			l := listen(t)
			p := start(t, l.Addr().String())
			client, server := through(t, p, l)
			from, to := client, server
			if test.dir == ToClient {
				from, to = server, client
			}
			send(t, from, "before") // does not count
			wantBytes(t, "peer", to, "before")

			p.CutAfter(int64(test.n), test.dir)
			send(t, to, "other direction") // does not count
			wantBytes(t, "sender", from, "other direction")
			for _, s := range test.sends {
				send(t, from, s)
			}
			got, err := io.ReadAll(to)
			if string(got) != test.want || !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("peer read %q, %v, want %q and a reset", got, err, test.want)
			}
			wantReset(t, "sender", from)
			if got := p.Counts().Resets; got != 1 {
				t.Errorf("Resets = %d, want 1", got)
			}

			client, server = through(t, p, l) // it strikes once
			send(t, client, "long enough to be cut")
			wantBytes(t, "server", server, "long enough to be cut")
		})
	}
}

func TestCutWaitsForAReaderThatIsSlow(t *testing.T) {
	p, client, server := pair(t)
	const n = 8 << 20 // more than the sockets hold
	p.CutAfter(n, ToServer)
	go func() { _, _ = io.Copy(client, io.LimitReader(zeros{}, n+1000)) }()
	time.Sleep(50 * time.Millisecond)
	got, err := io.Copy(io.Discard, server)
	if got != n || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("server read %d bytes, %v, want %d and a reset", got, err, n)
	}
}

func TestLookCutsBeforeOrAfterWhatItSees(t *testing.T) {
	for _, test := range []struct {
		action Action
		want   string
	}{{CutBefore, ""}, {CutAfterThese, "message 7"}} {
		p, client, server := pair(t)
		var mu sync.Mutex
		seen := map[Direction]string{}
		p.OnBytes(func(dir Direction, b []byte) Action {
			mu.Lock()
			defer mu.Unlock()
			seen[dir] += string(b)
			if dir == ToServer && bytes.Contains(b, []byte("message 7")) {
				return test.action
			}
			return Pass
		})
		send(t, client, "message 6")
		wantBytes(t, "server", server, "message 6")
		send(t, server, "ok")
		wantBytes(t, "client", client, "ok")
		send(t, client, "message 7")
		if got, err := io.ReadAll(server); string(got) != test.want || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("action %d: server read %q, %v, want %q and a reset", test.action, got, err, test.want)
		}
		wantReset(t, "client", client)
		mu.Lock()
		if seen[ToServer] != "message 6message 7" || seen[ToClient] != "ok" {
			t.Errorf("action %d: seen %q, want all bytes of both directions", test.action, seen)
		}
		mu.Unlock()
	}
}

func TestFaultsMayComeFromManyGoroutines(t *testing.T) {
	l := listen(t)
	p := start(t, l.Addr().String())
	var servers sync.WaitGroup
	servers.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			servers.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 25 {
				conn, err := net.Dial("tcp", p.Addr())
				if err != nil {
					continue
				}
				_ = conn.SetDeadline(time.Now().Add(5 * time.Millisecond))
				_, _ = io.WriteString(conn, "echo")
				_, _ = io.ReadFull(conn, make([]byte, 4))
				conn.Close()
			}
		})
	}
	for _, fault := range []func(){
		func() { p.Reset() },
		func() { p.HalfClose() },
		func() { p.BlackHole(true); p.BlackHole(false) },
		func() { p.SwallowReplies(true); p.SwallowReplies(false) },
		func() { p.SetLatency(time.Millisecond); p.SetLatency(0) },
		func() { p.CutAfter(2, ToClient) },
		func() { p.OnBytes(func(Direction, []byte) Action { return Pass }); p.OnBytes(nil) },
		func() { p.Refuse(true); p.Refuse(false) },
		func() { _ = p.Counts() },
	} {
		all.Go(func() {
			for range 25 {
				fault()
				time.Sleep(time.Millisecond)
			}
		})
	}
	all.Wait()
	p.Close()
	l.Close()
	servers.Wait()
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
