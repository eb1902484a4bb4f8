// Package port finds loopback ports for servers that tests start and stop.
package port

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
)

// kept are the ports that Free has returned: a server that is down has its port again when
// it is started.
var kept sync.Map

// shares is how many parts the range has. A process takes the ports of one, so that it is
// not likely to take that of a stopped server of another process.
const shares = 8

// lowest is above the ports that services are known by.
const lowest = 15000

// Listen listens on a free loopback port that the kernel does not hand out by
// itself. While a server is down, a port of the ephemeral range could go to
// any outgoing connection, even to the client that dials it, which would then
// be connected to itself.
func Listen() (net.Listener, error) {
	for range 100 {
		p := candidate()
		if _, taken := kept.Load(p); taken {
			continue
		}
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", p))
		if err == nil {
			return l, nil
		}
	}
	return net.Listen("tcp4", "127.0.0.1:0")
}

// Free returns the number of a port as Listen chooses it, which was free a moment
// ago. This process does not get it again. Another process may be faster, so a server that
// cannot bind it needs another one.
func Free() (int, error) {
	l, err := Listen()
	if err != nil {
		return 0, err
	}
	defer l.Close()
	p := l.Addr().(*net.TCPAddr).Port
	kept.Store(p, true)
	return p, nil
}

// candidate is 0, the kernel's choice, where its range leaves no room below.
func candidate() int {
	room := ephemeral() - lowest
	if room < 1000 {
		return 0
	}
	share := room / shares
	return lowest + os.Getpid()%shares*share + rand.IntN(share)
}

// ephemeral returns the first port of the kernel's own range.
func ephemeral() int {
	first := 32768
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(b), &first)
	}
	return first
}
