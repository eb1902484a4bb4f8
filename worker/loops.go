package worker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
)

const minPause, maxPause = 50 * time.Millisecond, 5 * time.Second

// outageProbe is how long Receive waits for a message in an outage: when no message arrived,
// the outage is over. It is longer than a broker may take to connect.
const outageProbe = 15 * time.Second

// A loop is a part of the worker that meets an outage, of one source or of all.
type loop struct {
	of    *source
	doing string
}

// receive receives messages of s while there is room for them. It returns nil when ctx
// ends, or when no message arrived at the transport for the idle time.
func (r *running) receive(ctx context.Context, s *source) error {
	pause, failing, this := minPause, false, loop{s, "receive"}
	for {
		var room int
		select {
		case <-ctx.Done():
			return nil
		case room = <-s.room:
		}
		waiting, cancel := ctx, context.CancelFunc(func() {})
		switch {
		case failing:
			waiting, cancel = context.WithTimeout(ctx, outageProbe)
		case r.cfg.Idle > 0 && s == r.main:
			waiting, cancel = context.WithTimeout(ctx, r.cfg.Idle)
		}
		ds, err := s.Receive(waiting, room)
		// A receiver that was still connecting has not seen that there is no message.
		idle := waiting.Err() != nil && !errors.Is(err, waybill.ErrUnavailable)
		cancel()
		over := failing && ctx.Err() == nil && (idle || len(ds) > 0)
		if over {
			failing = false
			r.outage.Worked(ctx, this)
		}
		if len(ds) > 0 {
			pause = minPause
			s.hold(ds)                        // renewed while check waits
			r.received <- r.check(ctx, s, ds) // coordinate listens until receive has returned
			continue
		}
		switch {
		case ctx.Err() != nil, idle && !over && !r.holds():
			return nil
		case idle:
			continue // an outage is over, or no message arrives, but some are unsettled
		case err == nil:
			return errors.New("worker: receiver returned neither messages nor an error")
		case !errors.Is(err, waybill.ErrUnavailable):
			return err
		}
		failing = true
		r.outage.Failed(ctx, this, "cannot receive, will try again", slog.Duration("retry_in", pause), slog.Any("err", err))
		if !sleep(ctx.Done(), pause) {
			return nil
		}
		pause = min(2*pause, maxPause)
	}
}

// sleep waits, and reports false if it was interrupted.
func sleep(interrupt <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-interrupt:
		return false
	case <-timer.C:
		return true
	}
}

// holds reports whether any delivery is unsettled.
func (r *running) holds() bool {
	for _, s := range r.sources {
		if s.unsettled() > 0 {
			return true
		}
	}
	return false
}

// check asks the retry queue which of the transport's messages belong there: those of
// keys that wait for a retry, also when another process, which has ended, has put them
// there, and messages that were acknowledged too late. It tries again while the store is
// unavailable.
func (r *running) check(ctx context.Context, s *source, ds []*waybill.Delivery) batch {
	b := batch{from: s, ds: ds, contained: make([]bool, len(ds)), stored: r.stored.Load()}
	if r.retries == nil || s == r.retries {
		return b
	}
	var asked []*waybill.Delivery
	var at []int
	for i, d := range ds {
		if d.Record.Key != "" || d.Redelivered {
			asked, at = append(asked, d), append(at, i)
		}
	}
	this := loop{s, "check"}
	for pause := minPause; len(asked) > 0; pause = min(2*pause, maxPause) {
		asking, cancel := context.WithTimeout(ctx, settleTimeout)
		contained, err := r.retries.retries.Contains(asking, asked...)
		cancel()
		if err == nil {
			r.outage.Worked(ctx, this)
			for i, in := range contained {
				b.contained[at[i]] = in
			}
			break
		}
		if ctx.Err() == nil {
			r.outage.Failed(ctx, this, "cannot read the retry queue, will try again", slog.Duration("retry_in", pause), slog.Any("err", err))
		}
		if !sleep(ctx.Done(), pause) {
			b.unchecked = true
			break
		}
	}
	return b
}

// belongs reports whether the i-th message of b goes to the retry queue before it is
// handled: behind others of its key, or because the process that had it may have ended by
// it, which is counted there.
func (r *running) belongs(b batch, i int) bool {
	d := b.ds[i]
	if b.contained[i] || d.Redelivered && d.Record.Problem == nil {
		return true
	}
	_, waits := r.waiting[d.Record.Key]
	return waits
}
