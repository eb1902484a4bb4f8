package faultproxy

import (
	"fmt"
	"net"
	"sync"

	"github.com/waybill-go/waybill/internal/test/testserver/port"
)

// A KillSwitch forwards the connections of one client to a database, and ends them
// between two of its statements, as the end of the client's process would. The server
// has finished its side when the client learns of it. Its methods may be called
// concurrently.
type KillSwitch struct {
	target   string
	splitter func() func(b []byte) (ends []int)
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	left   int // statements before it strikes; 0 means never
	struck bool
	conns  map[*net.TCPConn]*net.TCPConn // of the server, by that of the client
}

// StartKillSwitch listens on a free loopback port for connections to target. The splitter
// is that of the database's protocol, such as PostgresStatements.
func StartKillSwitch(target string, splitter func() func(b []byte) (ends []int)) (*KillSwitch, error) {
	l, err := port.Listen()
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	k := &KillSwitch{target: target, splitter: splitter, listener: l, conns: map[*net.TCPConn]*net.TCPConn{}}
	k.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			k.wg.Go(func() { k.serve(conn.(*net.TCPConn)) })
		}
	})
	return k, nil
}

// Addr returns host:port of the switch.
func (k *KillSwitch) Addr() string { return k.listener.Addr().String() }

// KillAfter strikes when n more statements, at least one, have reached the server, before
// the answer to the last. Until Revive no client connects.
func (k *KillSwitch) KillAfter(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left = n
}

// Revive ends KillAfter, and reports whether it has struck.
func (k *KillSwitch) Revive() (struck bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	struck, k.struck, k.left = k.struck, false, 0
	return struck
}

// Close ends the switch and its connections, and returns when nothing is left of them.
func (k *KillSwitch) Close() {
	_ = k.listener.Close()
	k.mu.Lock()
	for client, server := range k.conns {
		_, _ = client.Close(), server.Close()
	}
	k.mu.Unlock()
	k.wg.Wait()
}

func (k *KillSwitch) serve(client *net.TCPConn) {
	defer func() { _ = client.Close() }()
	conn, err := net.Dial("tcp", k.target)
	if err != nil {
		return
	}
	server := conn.(*net.TCPConn)
	defer func() { _ = server.Close() }()
	k.mu.Lock()
	refused := k.struck
	if !refused {
		k.conns[client] = server
	}
	k.mu.Unlock()
	if refused {
		return
	}
	k.wg.Go(func() { k.send(client, server) })
	k.answer(client, server)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, client)
}

// send forwards what the client writes.
func (k *KillSwitch) send(client, server *net.TCPConn) {
	split, b := k.splitter(), make([]byte, 16<<10)
	for {
		n, err := client.Read(b)
		if !k.forward(server, b[:n], split(b[:n])) || err != nil {
			_ = server.CloseWrite()
			return
		}
	}
}

// forward writes the bytes that a client sends before its end, and reports whether it lives.
func (k *KillSwitch) forward(server *net.TCPConn, b []byte, ends []int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.struck {
		return false
	}
	if k.left > 0 && len(ends) >= k.left {
		k.struck, b = true, b[:ends[k.left-1]]
	}
	k.left = max(0, k.left-len(ends))
	_, err := server.Write(b)
	if k.struck {
		for _, server := range k.conns {
			_ = server.CloseWrite()
		}
	}
	return err == nil && !k.struck
}

// answer forwards what the server writes, until it has ended its side.
func (k *KillSwitch) answer(client, server *net.TCPConn) {
	b := make([]byte, 16<<10)
	for {
		n, err := server.Read(b)
		if n > 0 && !k.over() {
			_, _ = client.Write(b[:n])
		}
		if err != nil {
			return
		}
	}
}

func (k *KillSwitch) over() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.struck
}
