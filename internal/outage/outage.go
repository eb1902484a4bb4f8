// Package outage writes an outage to the log in two lines, however many loops meet it and
// however often they try again.
package outage

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A Log logs the outages of one database or broker that several loops use. Its methods
// may be called concurrently.
type Log struct {
	to *slog.Logger

	mu       sync.Mutex // guards the fields below
	failing  map[any]bool
	began    time.Time
	failures int
}

// New returns a Log that writes to a logger, with attrs in each line.
func New(to *slog.Logger, attrs ...any) *Log {
	return &Log{to: to.With(attrs...), failing: map[any]bool{}}
}

// Failed notes that a loop has failed: a warning if no other one was failing, or else a
// line at debug.
func (l *Log) Failed(ctx context.Context, loop any, text string, attrs ...slog.Attr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	level := slog.LevelDebug
	if len(l.failing) == 0 {
		level, l.began, l.failures = slog.LevelWarn, time.Now(), 0
	}
	l.failing[loop] = true
	l.failures++
	l.to.LogAttrs(ctx, level, text, attrs...)
}

// Worked notes that a loop has succeeded. The outage is over when no loop is failing.
func (l *Log) Worked(ctx context.Context, loop any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.failing[loop] {
		return
	}
	delete(l.failing, loop)
	if len(l.failing) == 0 {
		l.to.LogAttrs(ctx, slog.LevelInfo, "outage over", slog.Int("failures", l.failures), slog.Duration("lasted", time.Since(l.began)))
	}
}
