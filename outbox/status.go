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

// status reports how a relay is doing, where the database keeps reports.
type status struct {
	to      Reporter       // nil where it keeps none
	listens ListeningStore // nil where it does not
	log     *slog.Logger

	// again is within what time a worker that finds the broker out of reach comes
	// to find it so again.
	again time.Duration

	mu     sync.Mutex // guards what follows
	last   Report
	at     time.Time // of last
	failed time.Time // when there was a problem last
}

func newStatus(store Store, cfg RelayConfig) *status {
	to, _ := store.(Reporter)
	listens, _ := store.(ListeningStore)
	return &status{to: to, listens: listens, log: cfg.Log, again: 2*cfg.PublishDeadline + outageMax, last: Report{Relay: uuid.Must(uuid.NewV4()), Transport: cfg.Transport}}
}

// now reports a problem, nil when there is none, if it is news or time.
func (s *status) now(ctx context.Context, problem error) {
	if s.to == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ""
	if problem != nil {
		text, s.failed = problem.Error(), time.Now()
	}
	news := s.hears(ctx) || (text == "") != (s.last.Problem == "")
	if !news && time.Since(s.at) < reportEvery {
		return
	}
	s.last.Problem, s.at = text, time.Now()
	s.send(ctx)
}

// hears notes whether commits of other processes are heard of, and reports
// whether that has changed. The caller holds mu.
func (s *status) hears(ctx context.Context) (changed bool) {
	if s.listens == nil {
		return false
	}
	before, why := s.last.Degraded, s.listens.Deaf()
	s.last.Degraded = why
	switch {
	case before == "" && why != "":
		s.log.LogAttrs(ctx, slog.LevelWarn, "degraded: LISTEN lost, polling for commits of other processes", slog.String("transport", s.last.Transport), slog.String("err", why))
	case before != "" && why == "":
		s.log.LogAttrs(ctx, slog.LevelInfo, "LISTEN is back", slog.String("transport", s.last.Transport))
	}
	return (before == "") != (why == "")
}

// idle reports that there was nothing to do. That is no sign that a problem is
// over: another worker may have the rows in hand.
func (s *status) idle(ctx context.Context) {
	s.mu.Lock()
	recent := time.Since(s.failed) < s.again
	s.mu.Unlock()
	if !recent {
		s.now(ctx, nil)
	}
}

// end takes the report back.
func (s *status) end(ctx context.Context) {
	if s.to == nil || s.at.IsZero() {
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
	if err := s.to.Report(ctx, s.last); err != nil && ctx.Err() == nil {
		s.log.LogAttrs(ctx, slog.LevelDebug, "relay could not report", slog.String("transport", s.last.Transport), slog.Any("err", err))
	}
}
