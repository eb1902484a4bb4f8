package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
)

// start acquires the right to relay, and waits for it with Standby or while the
// database is unavailable. It returns nil, nil if ctx ended first.
func (r *Relay) start(ctx context.Context) (release func(), err error) {
	said := false
	for ctx.Err() == nil {
		starting, cancel := context.WithTimeout(ctx, r.cfg.PublishDeadline)
		release, err := r.store.StartRelay(starting)
		cancel()
		switch {
		case err == nil:
			r.unread.Worked(ctx, r)
			if said {
				r.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "took over", slog.String("transport", r.cfg.Transport))
			}
			return release, nil
		case ctx.Err() != nil:
			return nil, nil // stopped before it started
		case errors.Is(err, waybill.ErrUnavailable):
			r.unread.Failed(ctx, r, "relay lock not available, will try again", slog.Any("err", err))
			sleep(ctx, 8*r.cfg.PollMax)
		case errors.Is(err, waybill.ErrRelayRunning) && r.cfg.Standby:
			if !said {
				r.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "another relay runs, standing by", slog.String("transport", r.cfg.Transport))
				said = true
			}
			sleep(ctx, 10*r.cfg.PollMin)
		default:
			return nil, err
		}
	}
	return nil, nil
}

// introduce logs the relay's destination, and warns of a name that no outbox knows.
func (r *Relay) introduce(ctx context.Context) {
	transport := slog.String("transport", r.cfg.Transport)
	r.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "relay started", append([]slog.Attr{transport}, r.to.Traits().To...)...)
	asking, cancel := context.WithTimeout(ctx, r.cfg.PublishDeadline)
	defer cancel()
	known, err := r.store.Transports(asking)
	if err == nil && !slices.Contains(known, r.cfg.Transport) {
		r.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "nothing dispatches to this transport: no outbox has registered its name yet", transport, slog.Any("known", append([]string{}, known...))) // not null
	}
}

// connect connects to the broker, unless a connection is known to be alive. The error is a
// *BrokerError.
func (r *Relay) connect(ctx context.Context, to Publisher) error {
	connecting, cancel := context.WithTimeout(ctx, r.cfg.PublishDeadline)
	defer cancel()
	err := to.Connect(connecting)
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		r.status.now(context.WithoutCancel(ctx), err) // a cancelled report could be stored after the final one
	}
	return &BrokerError{err}
}

// attempt relays a batch. First it connects again if the last attempt met an outage: a
// relay without a connection claims no rows, and leaves them to relays that have one. Every
// few seconds a loop looks for the broker anyway, or an idle relay would not miss it.
func (r *Relay) attempt(ctx context.Context, l *loop, claimed func()) (n int, err error) {
	if errors.Is(l.err, waybill.ErrUnavailable) || l.unconnected || l.part != Retries && r.probeDue() {
		if err := r.connect(ctx, l.to); err != nil {
			l.unconnected = true
			return 0, err
		}
		if l.unconnected {
			l.unconnected = false
			r.broken.Worked(ctx, l)
			r.status.now(context.WithoutCancel(ctx), nil)
		}
	}
	r.busy.Add(1)
	defer r.busy.Add(-1)
	defer r.attempts.begin()()
	before := r.batches.Load()
	n, err = r.relayBatch(ctx, l.part, l.to, claimed)
	if n == 0 && err == nil {
		r.empty[l.part].Store(before)
	}
	// Without rows it has not published: another loop may hold the unpublished ones.
	if err == nil && (n > 0 || time.Since(l.lost) > r.status.again) {
		r.broken.Worked(ctx, l)
	}
	if err == nil || isBroker(err) {
		r.unread.Worked(ctx, l)
	}
	return n, err
}

// probeDue reports whether a loop is to look for the broker now: one does each reportEvery.
func (r *Relay) probeDue() bool {
	last, now := r.probed.Load(), time.Now().UnixNano()
	return (now < last || now-last >= int64(reportEvery)) && r.probed.CompareAndSwap(last, now)
}

func isBroker(err error) bool {
	var broker *BrokerError
	return errors.As(err, &broker)
}

// rideOut logs an error and waits. With Drain it reports that the loop ends: with an error
// that waiting does not mend, or because another relay, with a connection, has published
// the rest.
func (r *Relay) rideOut(ctx context.Context, l *loop, wait time.Duration) (ended bool, _ error) {
	attrs := []slog.Attr{slog.String("part", l.part.String()), slog.Duration("retry_in", wait), slog.Any("err", l.err)}
	if isBroker(l.err) {
		l.lost = time.Now()
		r.broken.Failed(ctx, l, "the broker is not available, the relay will try again", attrs...)
	} else {
		r.unread.Failed(ctx, l, "relay pass failed, will try again", attrs...)
		if !errors.Is(l.err, waybill.ErrUnavailable) { // or it cannot take the report, and its end would be one
			r.status.now(ctx, fmt.Errorf("database: %w", l.err))
		}
	}
	if r.cfg.Drain && !isBroker(l.err) && !errors.Is(l.err, waybill.ErrUnavailable) {
		return true, l.err
	}
	if r.cfg.Drain && r.allWaits(ctx) {
		return true, nil
	}
	sleep(ctx, wait) // hints do not shorten an outage
	return false, nil
}
