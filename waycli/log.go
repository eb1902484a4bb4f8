package waycli

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/lmittmann/tint"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/suggest"
)

// newLog returns a logger that writes to s.
func newLog(s *screen, level, format string, color bool) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, &Error{Usage, fmt.Errorf("--log-level: %q is not a level", level), suggest.Hint(level, []string{"debug", "info", "warn", "error"}, "levels")}
	}
	switch format {
	case "json":
	case "text":
		return textLog(s, least, color), nil
	case "auto":
		if s.terminal {
			return textLog(s, least, color), nil
		}
	default:
		return nil, &Error{Usage, fmt.Errorf("--log-format: %q is not a format", format), suggest.Hint(format, []string{"auto", "text", "json"}, "formats")}
	}
	return slog.New(slog.NewJSONHandler(s, &slog.HandlerOptions{Level: least, ReplaceAttr: readable})), nil
}

// readable prints durations as 1.5s and not in nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().String())
	}
	return a
}

func textLog(s *screen, least slog.Level, color bool) *slog.Logger {
	return slog.New(tint.NewTextHandler(s, &tint.Options{Level: least, NoColor: !color, TimeFormat: time.TimeOnly, ReplaceAttr: harmless}))
}

// harmless makes what strangers wrote into a message visible, before a terminal obeys
// it: tint escapes no message, and in a value with colours everything but ESC.
func harmless(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case slog.Level, time.Time, time.Duration: // of the log itself
	case string:
		a.Value = slog.StringValue(strings.ReplaceAll(v, "\x1b", "␛"))
		if a.Key == slog.MessageKey {
			a.Value = slog.StringValue(visible(v))
		}
	default:
		a.Value = slog.StringValue(strings.ReplaceAll(fmt.Sprint(v), "\x1b", "␛"))
	}
	return a
}

// observer logs a line a message, counts for the history and for a scrape, and traces.
func (s *session) observer() waybill.Observer {
	level := slog.LevelDebug
	if s.flags.logMessages || s.cfg != nil && s.cfg.Log.Messages == config.LogInfo {
		level = slog.LevelInfo
	}
	all := waybill.Observers{waybill.LogEvents(s.log, level)}
	if s.admin != nil {
		all = append(all, s.admin.metrics)
	}
	if r := s.history(); r != nil {
		all = append(all, r)
	} else {
		all = append(all, &s.late)
	}
	s.tracing.Do(s.startTracing)
	if s.tracer != nil {
		all = append(all, s.tracer)
	}
	return all
}

// flushTimeout bounds how long the last spans of a process may take.
const flushTimeout = 5 * time.Second

func (s *session) startTracing() {
	if s.app.Traces == nil {
		return
	}
	tracer, shutdown, err := s.app.Traces(context.Background(), s.app.Name, s.log)
	if err != nil {
		s.log.LogAttrs(context.Background(), slog.LevelWarn, "no traces", slog.Any("err", err))
	}
	if err != nil || tracer == nil {
		return
	}
	s.tracer = tracer
	s.closers = append(s.closers, closer(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
		defer cancel()
		if err := shutdown(ctx); err != nil {
			s.log.LogAttrs(ctx, slog.LevelWarn, "the last traces are lost", slog.Any("err", err))
		}
		return nil
	}))
}

type closer func() error

// Close implements io.Closer.
func (c closer) Close() error { return c() }
