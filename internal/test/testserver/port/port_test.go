package port

import "testing"

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
