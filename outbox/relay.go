package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
)

// A Relay moves the rows of one transport from a database's outbox to its
// broker: in commit order per key, at least once, all keys in parallel. It
// deletes a row after the broker confirmed it. Any number of relays may run,
// where the Store allows it.
type Relay struct {
	store    Store
	to       Publisher
	isolated Publisher // for retries
	cfg      RelayConfig
	poison   *poisonDetector
	status   *status
	wake     [Retries + 1]chan struct{} // by part: wake-ups by other loops
	polling  [Retries + 1]chan struct{} // by part: the right of one idle loop to poll

	running  atomic.Bool
	attempts attempts
	busy     atomic.Int32              // loops that claim, publish or settle
	batches  atomic.Int64              // settled batches, plus 1
	empty    [Retries + 1]atomic.Int64 // by part: batches at the start of its last empty claim
}

// NewRelay returns a relay from store to the broker behind to.
func NewRelay(store Store, to Publisher, cfg RelayConfig) (*Relay, error) {
	if store == nil || to == nil {
		return nil, errors.New("outbox: a relay needs a store and a publisher")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if idle := store.Traits().IdleTimeout; idle > 0 {
		if err := CheckFence(idle, cfg.PublishDeadline, to); err != nil {
			return nil, err
		}
		cfg.Workers = cmp.Or(cfg.Workers, 2)
	}
	cfg.Workers = max(cfg.Workers, 1)
	if can := to.Traits(); cfg.Pipelined && can.Stream == nil && !can.Atomic {
		return nil, errors.New("outbox: relay config: Pipelined needs a publisher that keeps the order of what is unconfirmed")
	}
	r := &Relay{store: store, to: to, isolated: to.Isolated(), cfg: cfg, poison: newPoisonDetector()}
	if r.isolated == nil {
		r.isolated = to
	}
	r.batches.Store(1)
	for part := range r.wake {
		r.wake[part] = make(chan struct{}, 1)
	}
	return r, nil
}

// Run relays until ctx ends, and returns nil once the claimed batches are settled.
// Errors of the broker and the database are logged and retried. With Drain it also
// returns once no due row is left, and returns an error that does not wrap
// waybill.ErrUnavailable. A second Run at the same time is refused.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("outbox: the relay runs already")
	}
	defer r.running.Store(false)
	release, err := r.start(ctx)
	if err != nil || release == nil {
		return err
	}
	defer release()
	r.status = newStatus(r.store, r.cfg)
	defer r.status.end(ctx)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var loops sync.WaitGroup
	errs := make(chan error, 2*r.cfg.Workers+1)
	for part := range r.polling {
		r.polling[part] = make(chan struct{}, 1)
		r.polling[part] <- struct{}{}
	}
	begin := func(part Part, to Publisher) {
		loops.Go(func() {
			if err := r.loop(ctx, part, to); err != nil {
				errs <- err
			}
			stop() // without an error: no due row of any part is left
		})
	}
	for range r.cfg.Workers {
		begin(Keyed, r.to)
		begin(Unkeyed, r.to)
	}
	begin(Retries, r.isolated)
	loops.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// hint ends the pause of one loop of a part.
func (r *Relay) hint(part Part) {
	select {
	case r.wake[part] <- struct{}{}:
	default:
	}
}

// hintAt wakes the loop of retries if a failure is due at once.
func (r *Relay) hintAt(failed []Failure) {
	if slices.ContainsFunc(failed, func(f Failure) bool { return f.RetryIn == 0 }) {
		r.hint(Retries)
	}
}

// loop relays one part until ctx ends, or with Drain until nothing due is left. Of the
// idle loops of a part one polls: when it has claimed rows, the next one does.
func (r *Relay) loop(ctx context.Context, part Part, to Publisher) error {
	// pause is the delay before the next claim of an idle part, outage the delay
	// after an error. Both double up to their limits.
	pause, outage := r.cfg.PollMin, outageMin
	woken := false        // the last pause ended by a hint, and no rows were claimed since
	var polls atomic.Bool // this loop has the right to poll
	passOn := func() {
		if polls.CompareAndSwap(true, false) {
			r.polling[part] <- struct{}{}
		}
	}
	var committed <-chan struct{}
	if part != Retries {
		committed = r.store.Wake(r.cfg.Transport, part)
	}
	var err error
	for n := 0; ctx.Err() == nil; {
		slow := time.AfterFunc(slowClaim, passOn) // or idle loops would wait for it, too
		n, err = r.attempt(ctx, part, to, err, passOn)
		slow.Stop()
		if err == nil {
			outage = outageMin
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			passOn()
			if ended, err := r.rideOut(ctx, part, err, outage); ended {
				return err
			}
			outage = min(2*outage, outageMax)
		case n > 0:
			pause, woken = r.cfg.PollMin, false
		default:
			if r.cfg.Drain && r.drained(ctx) {
				return nil
			}
			if !polls.Load() {
				waited := r.awaitPolling(ctx, part)
				polls.Store(true)
				if waited {
					pause, woken = r.cfg.PollMin, true
					continue
				}
			}
			if woken { // a concurrent claim that was too early may have held the lock
				pause = min(recheck, r.cfg.PollMin)
			}
			if woken = sleepUntil(ctx, pause, r.wake[part], committed); woken {
				pause = r.cfg.PollMin
			} else {
				pause = min(2*pause, r.cfg.PollMax)
			}
		}
	}
	return nil
}

// attempt connects again if the last error was an outage, and relays a batch.
func (r *Relay) attempt(ctx context.Context, part Part, to Publisher, last error, claimed func()) (n int, err error) {
	if err := r.reconnect(ctx, to, last); err != nil {
		return 0, err
	}
	r.busy.Add(1)
	defer r.busy.Add(-1)
	defer r.attempts.begin()()
	before := r.batches.Load()
	n, err = r.relayBatch(ctx, part, to, claimed)
	if n == 0 && err == nil {
		r.empty[part].Store(before)
	}
	return n, err
}

// rideOut logs an error and waits. With Drain it reports that the loop ends: with an error
// that waiting does not mend, or because another relay, with a connection, has published
// the rest.
func (r *Relay) rideOut(ctx context.Context, part Part, err error, wait time.Duration) (ended bool, _ error) {
	r.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "relay pass failed, will try again", slog.String("transport", r.cfg.Transport), slog.String("part", part.String()), slog.Duration("retry_in", wait), slog.Any("err", err))
	if r.cfg.Drain && !errors.Is(err, waybill.ErrUnavailable) {
		return true, err
	}
	if r.cfg.Drain && r.allWaits(ctx) {
		return true, nil
	}
	sleep(ctx, wait) // hints do not shorten an outage
	return false, nil
}

// awaitPolling takes a part's right to poll, or ends with ctx. It reports whether another
// loop had it.
func (r *Relay) awaitPolling(ctx context.Context, part Part) (waited bool) {
	select {
	case <-r.polling[part]:
		return false
	default:
	}
	select {
	case <-r.polling[part]:
	case <-ctx.Done():
	}
	return true
}

// slowClaim is the time after which a loop that polls passes its right on, although it
// has claimed no rows: the network, or the promotion of delayed messages, may hold it up.
const slowClaim = 20 * time.Millisecond

// recheck is the poll delay after a hint that found no rows.
const recheck = 500 * time.Microsecond

// outageMin and outageMax bound the delay after an error of the database or the
// broker.
const outageMin, outageMax = 50 * time.Millisecond, 2 * time.Second

// reconnect connects to the broker again if err, the last batch's, is an outage. A
// relay without a connection claims no rows, and leaves them to relays that have one.
func (r *Relay) reconnect(ctx context.Context, to Publisher, err error) error {
	if !errors.Is(err, waybill.ErrUnavailable) {
		return nil
	}
	connecting, cancel := context.WithTimeout(ctx, r.cfg.PublishDeadline)
	defer cancel()
	err = to.Connect(connecting)
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		r.status.now(context.WithoutCancel(ctx), err) // a cancelled report could be stored after the final one
	}
	if !errors.Is(err, waybill.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", waybill.ErrUnavailable, err)
	}
	return fmt.Errorf("publish: %w", err)
}

// drained reports whether no due row is left: since the last settled batch, which may
// have unblocked rows, a claim of each part was empty; no loop is busy, and every
// pending row is blocked.
func (r *Relay) drained(ctx context.Context) bool {
	batches := r.batches.Load()
	for part := range r.empty {
		if r.empty[part].Load() != batches {
			return false
		}
	}
	if r.busy.Load() > 0 {
		return false
	}
	return r.allWaits(ctx) && r.busy.Load() == 0 && r.batches.Load() == batches
}

// allWaits reports whether every pending row is parked, or blocked and not due.
func (r *Relay) allWaits(ctx context.Context) bool {
	backlog, err := r.store.Backlog(ctx, r.cfg.Transport)
	return err == nil && backlog.Pending <= backlog.Blocked
}

// start acquires the right to relay, and waits for it with Standby or while the
// database is unavailable. It returns nil, nil if ctx ended first.
func (r *Relay) start(ctx context.Context) (release func(), err error) {
	said := false
	for ctx.Err() == nil {
		release, err := r.store.StartRelay(ctx)
		switch {
		case err == nil:
			if said {
				r.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "took over", slog.String("transport", r.cfg.Transport))
			}
			return release, nil
		case ctx.Err() != nil:
			return nil, nil // stopped before it started
		case errors.Is(err, waybill.ErrUnavailable):
			r.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "relay lock not available, will try again", slog.String("transport", r.cfg.Transport), slog.Any("err", err))
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

// sleep waits for d or ctx.
func sleep(ctx context.Context, d time.Duration) { sleepUntil(ctx, d, nil, nil) }

// sleepUntil waits for d, ctx, hint or committed, and reports whether one of the last
// two ended it.
func sleepUntil(ctx context.Context, d time.Duration, hint, committed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-hint:
		return true
	case <-committed:
		return true
	}
	return false
}
