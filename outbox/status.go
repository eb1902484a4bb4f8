package outbox

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gofrs/uuid/v5"
)

const (
	reportEvery   = 5 * time.Second
	reportTimeout = 2 * time.Second
)

// status writes the reports of one relay to a database that keeps them.
type status struct {
	store Store
	log   *slog.Logger

	// again is the longest time between two failures of one loop in an outage.
	again time.Duration

	mu     sync.Mutex // guards the fields below
	last   Report
	at     time.Time // of last
	failed time.Time // of the last problem
}

func newStatus(store Store, cfg RelayConfig) *status {
	return &status{store: store, log: cfg.Log, again: 2*cfg.PublishDeadline + outageMax, last: Report{Relay: uuid.Must(uuid.NewV4()), Transport: cfg.Transport}}
}

// now reports problem (nil for none) if the state has changed or reportEvery has
// passed.
func (s *status) now(ctx context.Context, problem error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ""
	if problem != nil {
		text, s.failed = problem.Error(), time.Now()
	}
	s.report(ctx, text)
}

// report is now with the text of the problem. The caller holds mu.
func (s *status) report(ctx context.Context, text string) {
	if !s.store.Traits().KeepsReports {
		return
	}
	changed := s.hears(ctx) || (text == "") != (s.last.Problem == "")
	if !changed && time.Since(s.at) < reportEvery {
		return
	}
	s.last.Problem, s.at = text, time.Now()
	s.send(ctx)
}

// hears updates and logs whether the store is notified of commits in other processes,
// and reports whether that has changed. The caller holds mu.
func (s *status) hears(ctx context.Context) (changed bool) {
	before, why := s.last.Degraded, s.store.ListenError()
	s.last.Degraded = why
	switch {
	case before == "" && why != "":
		s.log.LogAttrs(ctx, slog.LevelWarn, "degraded: LISTEN lost, polling for commits of other processes", slog.String("transport", s.last.Transport), slog.String("err", why))
	case before != "" && why == "":
		s.log.LogAttrs(ctx, slog.LevelInfo, "LISTEN is back", slog.String("transport", s.last.Transport))
	}
	return (before == "") != (why == "")
}

// idle reports an empty claim. It repeats a recent problem: another loop may hold the
// claim on the affected rows.
func (s *status) idle(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ""
	if time.Since(s.failed) < s.again {
		text = s.last.Problem
	}
	s.report(context.WithoutCancel(ctx), text) // a cancelled report could be stored after the final one
}

// end marks the report as ended.
func (s *status) end(ctx context.Context) {
	if s.at.IsZero() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.Ended = true
	s.send(context.WithoutCancel(ctx))
}

func (s *status) send(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	if err := s.store.Report(ctx, s.last); err != nil && ctx.Err() == nil {
		s.log.LogAttrs(ctx, slog.LevelDebug, "relay could not report", slog.String("transport", s.last.Transport), slog.Any("err", err))
	}
}
