package worker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
)

// receive receives messages while there is room for them. It returns nil when ctx
// ends or no message arrived for the idle time.
func (r *running) receive(ctx context.Context) error {
	pause := 50 * time.Millisecond
	for {
		var room int
		select {
		case <-ctx.Done():
			return nil
		case room = <-r.room:
		}
		waiting, cancel := ctx, context.CancelFunc(func() {})
		if r.cfg.Idle > 0 {
			waiting, cancel = context.WithTimeout(ctx, r.cfg.Idle)
		}
		ds, err := r.from.Receive(waiting, room)
		idle := waiting.Err() != nil
		cancel()
		if len(ds) > 0 {
			pause = 50 * time.Millisecond
			r.received <- ds // coordinate listens until receive has returned
			continue
		}
		switch {
		case ctx.Err() == nil && idle && r.holds():
			continue // no message arrives, but some are unsettled
		case idle:
			return nil
		case err == nil:
			return errors.New("worker: receiver returned neither messages nor an error")
		case !errors.Is(err, waybill.ErrUnavailable):
			return err
		}
		r.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "cannot receive, will try again", slog.String("transport", r.cfg.Transport), slog.Duration("retry_in", pause), slog.Any("err", err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// holds reports whether any delivery is unsettled.
func (r *running) holds() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.cancels) > 0
}

// acknowledge acknowledges the deliveries in acks, up to 200 with one call. It returns
// when acks is closed, and closes settled.
func (r *running) acknowledge() {
	defer close(r.settled)
	for d := range r.acks {
		batch := []*waybill.Delivery{d}
		for more := true; more && len(batch) < 200; {
			select {
			case d, ok := <-r.acks:
				if more = ok; ok {
					batch = append(batch, d)
				}
			default:
				more = false
			}
		}
		ctx, cancel := r.settling()
		err := r.from.Ack(ctx, batch...)
		cancel()
		switch {
		case errors.Is(err, waybill.ErrLeaseLost):
			r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "handled, but the lease was lost: it comes again", slog.String("transport", r.cfg.Transport), slog.Any("err", err))
		case err != nil:
			r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "acknowledgement failed: the messages come again", slog.String("transport", r.cfg.Transport), slog.Int("messages", len(batch)), slog.Any("err", err))
		}
		r.forget(batch)
		r.settled <- len(batch)
	}
}

// renew renews the leases of unsettled deliveries and cancels the handlers of
// deliveries whose lease is lost. It ends with work.
func (r *running) renew(lease time.Duration) {
	tick := time.NewTicker(lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-r.work.Done():
			return
		case <-tick.C:
		}
		r.mu.Lock()
		ds := make([]*waybill.Delivery, 0, len(r.cancels))
		for d := range r.cancels {
			ds = append(ds, d)
		}
		r.mu.Unlock()
		if len(ds) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(r.work, lease/3)
		lost, err := r.from.Renew(ctx, ds...)
		cancel()
		if err != nil && r.work.Err() == nil {
			r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "leases not renewed, will try again", slog.String("transport", r.cfg.Transport), slog.Any("err", err))
		}
		r.mu.Lock()
		for _, d := range lost {
			stop, held := r.cancels[d]
			if held {
				r.lost[d] = true
			}
			if stop != nil {
				stop(waybill.ErrLeaseLost)
			}
		}
		r.mu.Unlock()
	}
}
