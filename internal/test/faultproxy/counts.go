package faultproxy

// Counts are the figures of a Proxy since its start.
type Counts struct {
	Connections int   // accepted
	Resets      int   // connections ended with RST by Reset, CutAfter or OnBytes
	HalfCloses  int   // connections that HalfClose ended toward the client
	BlackHoles  int   // times that BlackHole was switched on
	Refusals    int   // times that Refuse was switched on
	ToServer    int64 // bytes delivered to the server
	ToClient    int64 // bytes delivered to the client
	Swallowed   int64 // bytes to the client dropped by SwallowReplies, or after HalfClose
}

func (c *Counts) bytes(dir Direction) *int64 {
	if dir == ToServer {
		return &c.ToServer
	}
	return &c.ToClient
}

// Counts returns the figures of now.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}
