// Package port finds loopback ports for servers that tests start and stop.
package port

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
)

// lowest is above the ports that services are known by.
const lowest = 15000

// Listen listens on a free loopback port that the kernel does not hand out by
// itself. While a server is down, a port of the ephemeral range could go to
// any outgoing connection, even to the client that dials it, which would then
// be connected to itself.
func Listen() (net.Listener, error) {
	for range 100 {
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", candidate()))
		if err == nil {
			return l, nil
		}
	}
	return net.Listen("tcp4", "127.0.0.1:0")
}

// Free returns the number of a port as Listen chooses it, which was free a moment
// ago. Another process may be faster, so a server that cannot bind it needs another
// one.
func Free() (int, error) {
	l, err := Listen()
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// candidate is 0, the kernel's choice, where its range leaves no room below.
func candidate() int {
	room := ephemeral() - lowest
	if room < 1000 {
		return 0
	}
	return lowest + rand.IntN(room)
}

// ephemeral returns the first port of the kernel's own range.
func ephemeral() int {
	first := 32768
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(b), &first)
	}
	return first
}
