package waycli

import (
	"context"
	"io"
)

// A cancelReader is a standard input whose Read does not outlast ctx. An abandoned
// read ends with the process: it cannot be interrupted.
type cancelReader struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (c cancelReader) Read(p []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	own := make([]byte, len(p)) // an abandoned read must not write to p
	done := make(chan result, 1)
	go func() {
		n, err := c.r.Read(own)
		done <- result{n, err}
	}()
	select {
	case <-c.ctx.Done():
		return 0, c.ctx.Err()
	case r := <-done:
		return copy(p, own[:r.n]), r.err
	}
}
