package worker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/crash"
)

// settleTimeout bounds each call that settles deliveries, and giveBackTimeout one that coordinate
// waits for: within two of them a process that is watched must say that it lives.
const settleTimeout, giveBackTimeout = 10 * time.Second, 4 * time.Second

// finish settles a delivery whose handlers have returned.
func (r *running) finish(o outcome) {
	s, d := o.from, o.d
	suspect := s == r.retries && d.Redelivered
	switch {
	case o.err == nil:
		crash.At(crash.WorkerBeforeAck)
		r.metNoOutage()
		s.queue.Succeeded(d)
		s.acking++
		s.acks <- d
	case errors.Is(o.cause, waybill.ErrLeaseLost) || s.lost(d):
		r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "lease lost while handling", r.attrs(d, o.err)...)
		r.observer.Observe(r.work, r.event(waybill.LeaseLost, d, 0, o.err))
		s.giveBack(r, d) // deliveries behind it must not run before its new holder is done
	case suspect && (errors.Is(o.cause, ErrDrained) || unavailable(o.err)):
		if o.cause == nil {
			r.pauseAfter(d, o.err)
		}
		r.moveKey(s, Move{Delivery: d, Delay: r.pause}) // which ends the count of its start
	case errors.Is(o.cause, ErrDrained):
		s.giveBack(r, d)
	case unavailable(o.err):
		r.wait(s, d, o.err)
	default:
		r.fail(s, d, o.err)
	}
}

// unavailable reports whether handling failed because a database or broker could not be
// reached, gave up its transaction, or was lost at its commit other than by the handler's
// deadline: that is no failure of the message.
func unavailable(err error) bool {
	var several *waybill.HandlersError
	if errors.As(err, &several) {
		for _, f := range several.Failed {
			if !unavailable(f.Err) {
				return false
			}
		}
		return len(several.Failed) > 0
	}
	lostCommit := errors.Is(err, waybill.ErrCommitUnknown) && !errors.Is(err, context.DeadlineExceeded)
	return lostCommit || errors.Is(err, waybill.ErrUnavailable) || errors.Is(err, waybill.ErrTransactionLost)
}

// Failed reports whether an attempt that ended with err is a failure of its message: it was neither
// interrupted, nor met an outage.
func Failed(err error) bool {
	return err != nil && !errors.Is(err, ErrDrained) && !errors.Is(err, waybill.ErrLeaseLost) && !unavailable(err)
}

// triesBeforePauses is how often the messages in flight are tried without longer pauses: once to
// meet the outage, once to be moved, and twice for the next ones in their place.
const triesBeforePauses = 4

// postponed is how long a message waits in the retry queue that meets an outage while others do not.
const postponed = 30 * time.Second

// wait keeps d for another attempt after a pause. If others meet no outage it waits in the retry queue
// instead, without a pause: messages that need a lost server would hold them up. So does one that meets it
// again if no others come, one at a time; none while the store is away.
func (r *running) wait(s *source, d *waybill.Delivery, err error) {
	markHandled(d, err)
	if r.stopping {
		s.giveBack(r, d)
		return
	}
	worked, again := s.meetsOutage(d, r.worked)
	pending := r.lastMove - r.stored.Load()
	if r.away < triesBeforePauses*r.main.prefetch && (r.worked > worked || time.Now().Before(r.partialUntil)) {
		r.partialUntil = time.Now().Add(postponed + maxPause)
		if r.retries != nil && pending < int64(r.cfg.Concurrency) {
			r.away++
			r.logAway("unavailable while handling, the message waits", d, err, postponed)
			r.moveKey(s, Move{Delivery: d, Delay: postponed})
			return
		}
	}
	r.pauseAfter(d, err)
	n := s.queue.Count()
	noOthers := n >= s.prefetch || n > 1 && r.away > triesBeforePauses*r.main.prefetch // the broker may send no more
	if r.retries != nil && pending == 0 && again && noOthers {
		r.moveKey(s, Move{Delivery: d, Delay: maxPause})
		return
	}
	s.queue.Return(d)
}

// metNoOutage notes that an attempt has succeeded, or failed otherwise.
func (r *running) metNoOutage() {
	r.pause, r.away = 0, 0
	r.worked++
	if time.Now().After(r.partialUntil) { // or a partial outage would begin and end with each message
		r.unavailable.Worked(r.work, r)
	}
}

// pauseAfter lets no handler begin for a time, which doubles until an attempt meets no outage, once
// all that is in flight was tried.
func (r *running) pauseAfter(d *waybill.Delivery, err error) {
	r.away++
	if r.paused != nil {
		return
	}
	r.pause = max(r.pause, minPause)
	if r.away > triesBeforePauses*r.main.prefetch {
		r.pause = min(2*r.pause, maxPause)
	}
	r.paused = time.After(r.pause)
	r.logAway("unavailable while handling, the worker pauses", d, err, r.pause)
}

func (r *running) logAway(text string, d *waybill.Delivery, err error, retryIn time.Duration) {
	attrs := r.attrs(d, err)[1:] // each line of an outage has the transport
	r.unavailable.Failed(r.work, r, text, append(attrs, slog.Duration("retry_in", retryIn))...)
}

// fail counts a failed attempt and decides where the message goes.
func (r *running) fail(s *source, d *waybill.Delivery, err error) {
	markHandled(d, err)
	r.metNoOutage()
	failures := d.Failures + 1
	exhausted := failures > r.cfg.MaxRetries || waybill.IsUnrecoverable(err)
	delay := r.cfg.Retry.After(failures, err)
	policy := Block
	switch {
	case exhausted && r.retries != nil && d.Record.Key == "":
		policy = Skip
	case exhausted && r.retries != nil:
		policy = cmp.Or(r.cfg.OnExhausted, Park)
	}
	e := r.event(waybill.Retrying, d, 0, err)
	e.Failures = failures
	level, text := slog.LevelError, "handling failed, moved to the dead letters"
	switch {
	case policy == Skip:
		e.Kind = waybill.Skipped
	case policy == Park:
		e.Kind, text = waybill.KeyParked, "handling failed, its key is parked"
	case exhausted && r.retries == nil:
		e.Delay, text = r.cfg.Retry.Longest(), "handling failed without retries left or unrecoverably, and is retried for ever: only a worker with a Store has dead letters"
	case exhausted:
		e.Delay, text = r.cfg.Retry.Longest(), "handling failed without retries left, blocks its key and will be retried"
	default:
		e.Delay, level, text = delay, slog.LevelWarn, "handling failed, will be retried"
	}
	attrs := r.attrs(d, err)
	if e.Kind == waybill.Retrying {
		attrs = append(attrs, slog.Duration("retry_in", e.Delay))
	}
	r.cfg.Log.LogAttrs(r.work, level, text, attrs...)
	r.observer.Observe(r.work, e)
	if r.retries == nil {
		r.retryInPlace(s, d, e.Delay)
		return
	}
	m := Move{
		Delivery: d, Delay: e.Delay, Parked: policy == Park,
		Attempt: &Attempt{time.Now().UTC(), identity, describe(err)},
	}
	if policy == Skip {
		m.DeadLetters = r.cfg.FailureTransport
		r.move(move{from: s, Move: m}) // its key is free when it is stored
		return
	}
	r.moveKey(s, m)
}

// markHandled notes the handlers that need not run again.
func markHandled(d *waybill.Delivery, err error) {
	var several *waybill.HandlersError
	if errors.As(err, &several) {
		d.Record.MarkHandled(several.Succeeded...)
	}
}

// retryInPlace returns d to its transport with a delay, and the deliveries behind it
// without.
func (r *running) retryInPlace(s *source, d *waybill.Delivery, delay time.Duration) {
	ctx, cancel := r.settling(giveBackTimeout)
	defer cancel()
	behind := s.queue.Failed(d)
	if err := s.Retry(ctx, d, delay); err != nil {
		// Its lease expires; deliveries behind it must not run before it.
		r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "retry not stored, the message comes again when its lease ends", r.attrs(d, err)...)
	}
	s.drop(d)
	s.release(r, append(behind, s.queue.Forget(d)...))
}

// settling returns the context of calls that settle: they are not cancelled while
// handlers drain.
func (r *running) settling(timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(r.work), timeout)
}

func (r *running) event(kind waybill.EventKind, d *waybill.Delivery, took time.Duration, err error) waybill.Event {
	return waybill.Event{Kind: kind, ID: d.Record.ID, Name: d.Record.Name, Key: d.Record.Key, Transport: r.cfg.Transport, Failures: d.Failures, Duration: took, Err: err, Record: d.Record}
}

func (r *running) attrs(d *waybill.Delivery, err error) []slog.Attr {
	as := []slog.Attr{slog.String("transport", r.cfg.Transport), slog.String("message", d.Record.Name), slog.String("id", d.Record.ID.String()), slog.Int("attempt", d.Failures+1), slog.Any("err", err)}
	var panicked *waybill.PanicError
	if errors.As(err, &panicked) {
		as = append(as, slog.String("stack", string(panicked.Stack)))
	}
	return as
}
