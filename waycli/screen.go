package waycli

import (
	"io"
	"os"
	"strings"
	"sync"

	"github.com/mattn/go-isatty"
)

// A screen is stderr with a status line that is redrawn in place. Each Write
// comes out whole, above the status line.
type screen struct {
	terminal bool

	mu     sync.Mutex
	w      io.Writer // guarded by mu
	status string    // guarded by mu; drawn, without a line break
}

func newScreen(w io.Writer) *screen { return &screen{w: w, terminal: isTerminal(w)} }

const clearLine = "\r\x1b[K"

// Write implements io.Writer.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status == "" {
		return s.w.Write(p)
	}
	var b strings.Builder
	b.WriteString(clearLine)
	b.Write(p)
	b.WriteString(s.status)
	if _, err := io.WriteString(s.w, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// setStatus draws line in place of the last one; empty removes it. It does
// nothing without a terminal.
func (s *screen) setStatus(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.terminal || line == s.status {
		return
	}
	s.status = line
	_, _ = io.WriteString(s.w, clearLine+line)
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
