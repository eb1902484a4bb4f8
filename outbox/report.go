package outbox

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
)

// report emits the events and log lines of a settled batch.
func (r *Relay) report(ctx context.Context, done []ClaimedRow, failed []Failure) {
	address := r.to.Traits().Address
	for _, row := range done {
		took := max(time.Since(row.Record.DispatchedAt), 0) // two clocks may make it negative
		e := waybill.Event{Kind: waybill.Published, ID: row.Record.ID, Name: row.Record.Name, Key: row.Record.Key, Transport: r.cfg.Transport, Duration: took, Record: row.Record}
		if address != nil {
			e.Exchange, e.RoutingKey = address(row.Record)
		}
		r.observer.Observe(ctx, e)
		if row.Failures > 0 {
			e.Kind = waybill.KeyReleased
			r.observer.Observe(ctx, e)
		}
	}
	var suspects []Failure
	for _, f := range failed {
		if f.Suspect {
			suspects = append(suspects, f)
		}
		r.reportFailure(ctx, f)
	}
	if len(suspects) > 0 { // hundreds at once: each has a line at level Debug
		r.cfg.Log.WarnContext(ctx, "messages were in flight on a lost connection", "transport", r.cfg.Transport, "messages", len(suspects), "err", suspects[0].Err)
	}
}

func (r *Relay) reportFailure(ctx context.Context, f Failure) {
	e := waybill.Event{Kind: waybill.PublishFailed, ID: f.Row.Record.ID, Name: f.Row.Record.Name, Key: f.Row.Record.Key, Transport: r.cfg.Transport, Failures: f.failures(), Delay: f.RetryIn, Err: f.Err, Record: f.Row.Record}
	level, what := slog.LevelWarn, "publish refused, its key waits"
	change := waybill.KeyBlocked
	var rejected *RejectedError
	switch full := errors.As(f.Err, &rejected); {
	case full && f.failures() > 1 && f.failures()%logRejected != 0:
		level = slog.LevelDebug
	case !full && f.failures() >= r.cfg.MaxAttempts:
		level = slog.LevelError // an operator has to look: waybill outbox blocked
	}
	switch {
	case f.Suspect:
		level, what, e.Failures = slog.LevelDebug, "connection lost with the message in flight, to be tried apart", f.Row.Failures
	case f.Route:
		what = "unroutable, route blocked"
	case f.Parks():
		change, what, e.Delay = waybill.KeyParked, "publish refused for the last time, its key is parked: see waybill outbox blocked", 0
	case f.Exhausted:
		change, what, e.Delay = waybill.Skipped, "publish refused for the last time, the message is skipped: see waybill failed", 0
	}
	if !f.Suspect {
		r.observer.Observe(ctx, e)
	}
	e.Kind = change
	r.observer.Observe(ctx, e)
	r.cfg.Log.LogAttrs(ctx, level, what, slog.String("transport", r.cfg.Transport), slog.String("message", f.Row.Record.Name),
		slog.String("id", f.Row.Record.ID.String()), slog.Int("attempt", e.Failures), slog.Duration("retry_in", e.Delay), slog.Any("err", f.Err))
}

// logRejected is the sampling of repeated rejections in the log: with rejectedRetry,
// one in ten seconds.
const logRejected = 10
