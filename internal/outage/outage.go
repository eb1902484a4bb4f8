// Package outage writes an outage to the log in two lines and one each five minutes, however
// many loops meet it and however often they try again.
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

	mu            sync.Mutex // guards the fields below
	failing       map[any]bool
	began, warned time.Time
	failures      int
}

// New returns a Log that writes to a logger, with attrs in each line.
func New(to *slog.Logger, attrs ...any) *Log {
	return &Log{to: to.With(attrs...), failing: map[any]bool{}}
}

// Failed notes that a loop has failed: a warning if no other one was failing, and each
// five minutes, as the cause may have changed, or else a line at debug.
func (l *Log) Failed(ctx context.Context, loop any, text string, attrs ...slog.Attr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	level, now := slog.LevelDebug, time.Now()
	if len(l.failing) == 0 {
		l.began, l.warned, l.failures = now, time.Time{}, 0
	}
	if now.Sub(l.warned) >= 5*time.Minute {
		level, l.warned = slog.LevelWarn, now
	}
	l.failing[loop], l.failures = true, l.failures+1
	l.to.LogAttrs(ctx, level, text, attrs...)
}

// Worked notes that a loop has succeeded. The outage is over when no loop is failing.
func (l *Log) Worked(ctx context.Context, loop any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := len(l.failing)
	delete(l.failing, loop)
	if before == 1 && len(l.failing) == 0 {
		l.to.LogAttrs(ctx, slog.LevelInfo, "outage over", slog.Int("failures", l.failures), slog.Duration("lasted", time.Since(l.began)))
	}
}
