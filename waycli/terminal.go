package waycli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// A terminal is a whole screen that is redrawn in place, and keys without a line break.
type terminal struct {
	out     io.Writer
	keys    <-chan byte
	size    func() (width, height int)
	restore func() error
	forget  func()
}

const (
	ctrlC = 3 // SIGINT of a terminal in raw mode

	// The other screen, no cursor, and no line break at the right edge: wide characters would
	// scroll the screen otherwise.
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// openTerminal takes the terminal of in and out until close is called, or a second signal
// ends the process.
func openTerminal(ctx context.Context, in, out *os.File) (*terminal, error) {
	t := &terminal{out: out}
	keys := make(chan byte)
	t.keys = keys
	t.size = func() (int, int) {
		if width, height, err := term.GetSize(int(out.Fd())); err == nil && width > 0 && height > 0 {
			return width, height
		}
		return 80, 24
	}
	var err error
	t.forget, err = lastActsOf(ctx).during(func() error {
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return err
		}
		t.restore = sync.OnceValue(func() error {
			_, err := io.WriteString(out, leaveScreen)
			return errors.Join(err, term.Restore(int(in.Fd()), before))
		})
		_, err = io.WriteString(out, enterScreen)
		return err
	}, func() { _ = t.restore() })
	if err != nil {
		if t.restore != nil {
			_ = t.restore()
		}
		return nil, err
	}
	go func() { // nothing interrupts a read of a terminal: it ends with a key, or the process
		key := make([]byte, 1)
		for {
			if _, err := in.Read(key); err != nil {
				return
			}
			select {
			case keys <- key[0]:
			case <-ctx.Done():
				return
			}
		}
	}()
	return t, nil
}

// draw replaces the screen.
func (t *terminal) draw(lines []string) error {
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	_, err := io.WriteString(t.out, b.String())
	return err
}

// close gives the terminal back.
func (t *terminal) close() error {
	t.forget()
	return t.restore()
}
