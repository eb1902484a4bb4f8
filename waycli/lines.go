package waycli

import (
	"bytes"
	"io"
	"strings"
)

// A lineWriter passes whole lines on, each with a prefix, in one Write each.
type lineWriter struct {
	w      io.Writer
	prefix string
	rest   []byte // a line that is not complete
	last   string // the last line with something in it, or its beginning
}

// maxLast is how much is kept of the last line, in bytes.
const maxLast = 500

// maxLine is the length at which a line without an end is broken.
const maxLine = 64 << 10

// Write implements io.Writer.
func (l *lineWriter) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 && len(l.rest) < maxLine {
			return len(p), nil
		}
		if i < 0 {
			i = maxLine - 1
		}
		if err := l.pass(l.rest[:i+1]); err != nil {
			return 0, err
		}
		l.rest = l.rest[i+1:]
	}
}

// flush passes on the last line if it is incomplete, with a line break.
func (l *lineWriter) flush() {
	if len(l.rest) > 0 {
		_ = l.pass(append(l.rest, '\n')) // it is lost, as its command is
		l.rest = nil
	}
}

func (l *lineWriter) pass(line []byte) error {
	if text := bytes.TrimSpace(line); len(text) > 0 {
		l.last = strings.ToValidUTF8(string(text[:min(len(text), maxLast)]), "")
	}
	_, err := l.w.Write(append([]byte(l.prefix), line...))
	return err
}
