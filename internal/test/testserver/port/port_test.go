package port

import (
	"net"
	"testing"
)

func TestPortsAreBelowTheRangeOfOutgoingConnections(t *testing.T) {
	if ephemeral()-lowest < 1000 {
		t.Logf("the kernel hands out ports from %d, there is no room below", ephemeral())
		return
	}
	for range 100 {
		p, err := Free()
		if err != nil || p < lowest || p >= ephemeral() {
			t.Fatalf("Free = %d, %v, want a port from %d to %d", p, err, lowest, ephemeral()-1)
		}
	}
}

// A server that is stopped finds its port free when it is started again.
func TestPortOfAServerIsNotHandedOutAgain(t *testing.T) {
	servers := map[int]bool{}
	for range 100 {
		p, err := Free()
		if err != nil || servers[p] {
			t.Fatalf("Free = %d, %v: a server has it", p, err)
		}
		servers[p] = true
	}
	for range 100 {
		l, err := Listen()
		if err != nil {
			t.Fatal(err)
		}
		if p := l.Addr().(*net.TCPAddr).Port; servers[p] {
			t.Errorf("Listen took port %d of a server", p)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
