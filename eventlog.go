package waybill

import (
	"context"
	"log/slog"
)

// LogEvents returns an observer that writes a line a message to log, at level: when it is
// dispatched, published, handled (or an attempt of that fails), and when an inbox had an
// entry for it. Relays and workers log refusals and retries themselves. A line has the name,
// id, key and transport, at publishing exchange and routing key, never a body. The result may be called concurrently.
// A nil log discards.
func LogEvents(log *slog.Logger, level slog.Level) Observer {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &eventLog{log, level}
}

type eventLog struct {
	log   *slog.Logger
	level slog.Level
}

// Observe implements Observer.
func (l *eventLog) Observe(ctx context.Context, e Event) {
	switch e.Kind {
	case Dispatched, Published, Handled, Duplicate:
	default:
		return
	}
	if !l.log.Enabled(ctx, l.level) {
		return
	}
	attrs := make([]slog.Attr, 0, 8)
	attrs = append(attrs, slog.String("message", e.Name), slog.String("id", e.ID.String()))
	if e.Key != "" {
		attrs = append(attrs, slog.String("key", e.Key))
	}
	text := e.Kind.String()
	switch e.Kind {
	case Published:
		attrs = append(attrs, slog.String("transport", e.Transport))
		if e.Exchange != "" || e.RoutingKey != "" {
			attrs = append(attrs, slog.String("exchange", e.Exchange), slog.String("routing_key", e.RoutingKey))
		}
		attrs = append(attrs, slog.Duration("age", e.Duration))
	case Handled:
		attrs = append(attrs, slog.String("transport", e.Transport), slog.Int("attempt", e.Failures+1), slog.Duration("duration", e.Duration))
		if e.Err != nil {
			text, attrs = "attempt failed", append(attrs, slog.Any("err", e.Err))
		}
	case Duplicate:
		attrs = append(attrs, slog.String("handler", e.Handler))
	default:
		attrs = append(attrs, slog.String("transport", e.Transport))
	}
	l.log.LogAttrs(ctx, l.level, text, attrs...)
}
