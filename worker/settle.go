package worker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/crash"
)

// settleTimeout bounds each call that settles deliveries.
const settleTimeout = 10 * time.Second

// finish settles a delivery whose handlers have returned.
func (r *running) finish(o outcome) {
	d := o.d
	switch {
	case o.err == nil:
		crash.At(crash.WorkerBeforeAck)
		r.queue.Succeeded(d)
		r.acks <- d
	case errors.Is(o.cause, waybill.ErrLeaseLost):
		r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "lease lost while handling", r.attrs(d, o.err)...)
		r.cfg.Observer.Observe(r.work, r.event(waybill.LeaseLost, d, 0, o.err))
		// Deliveries behind it must not run before its new holder is done.
		behind := r.queue.Failed(d)
		r.drop(d)
		r.release(append(behind, r.queue.Forget(d)...))
	case errors.Is(o.cause, ErrDrained):
		r.release(append([]*waybill.Delivery{d}, r.queue.Failed(d)...))
		r.queue.Forget(d)
	default:
		r.retry(d, o.err)
	}
}

// retry returns d to the transport with a delay, and the deliveries behind it without.
func (r *running) retry(d *waybill.Delivery, err error) {
	var several *waybill.HandlersError
	if errors.As(err, &several) {
		d.Record.MarkHandled(several.Succeeded...)
	}
	failures := d.Failures + 1
	delay, level := r.cfg.Retry.After(failures, err), slog.LevelWarn
	if failures > r.cfg.MaxRetries || waybill.IsUnrecoverable(err) {
		delay, level = r.cfg.Retry.Longest(), slog.LevelError
	}
	r.cfg.Log.LogAttrs(r.work, level, "handling failed, will be retried", append(r.attrs(d, err), slog.Duration("retry_in", delay))...)
	e := r.event(waybill.Retrying, d, 0, err)
	e.Failures, e.Delay = failures, delay
	r.cfg.Observer.Observe(r.work, e)

	ctx, cancel := r.settling()
	defer cancel()
	behind := r.queue.Failed(d)
	if err := r.from.Retry(ctx, d, delay); err != nil {
		// Its lease expires; deliveries behind it must not run before it.
		r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "retry not stored, the message comes again when its lease ends", r.attrs(d, err)...)
	}
	r.drop(d)
	r.release(append(behind, r.queue.Forget(d)...))
}

// release returns ds to the transport unhandled.
func (r *running) release(ds []*waybill.Delivery) {
	if len(ds) == 0 {
		return
	}
	ctx, cancel := r.settling()
	defer cancel()
	if err := r.from.Release(ctx, ds...); err != nil && !errors.Is(err, waybill.ErrLeaseLost) {
		r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "release failed, the messages come again when their leases end", slog.String("transport", r.cfg.Transport), slog.Int("messages", len(ds)), slog.Any("err", err))
	}
	r.drop(ds...)
}

// drop forgets ds without an acknowledgement.
func (r *running) drop(ds ...*waybill.Delivery) {
	r.queue.Settled(len(ds))
	r.forget(ds)
}

// forget ends the renewal of ds.
func (r *running) forget(ds []*waybill.Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range ds {
		delete(r.cancels, d)
		delete(r.lost, d)
	}
}

// settling returns the context of calls that settle: they are not cancelled while
// handlers drain.
func (r *running) settling() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(r.work), settleTimeout)
}

func (r *running) attrs(d *waybill.Delivery, err error) []slog.Attr {
	as := []slog.Attr{slog.String("transport", r.cfg.Transport), slog.String("message", d.Record.Name), slog.String("id", d.Record.ID.String()), slog.Int("attempt", d.Failures+1), slog.Any("err", err)}
	var panicked *waybill.PanicError
	if errors.As(err, &panicked) {
		as = append(as, slog.String("stack", string(panicked.Stack)))
	}
	return as
}
