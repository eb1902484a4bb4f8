package outbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/outage"
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
	observer waybill.Observers
	poison   *poisonDetector
	status   *status
	broken   *outage.Log                // of the broker
	unread   *outage.Log                // of the database
	wake     [Retries + 1]chan struct{} // by part: wake-ups by other loops
	polling  [Retries + 1]chan struct{} // by part: the right of one idle loop to poll

	running  atomic.Bool
	probed   atomic.Int64 // when an idle loop last looked for the broker, in Unix nanoseconds
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
	r := &Relay{store: store, to: to, isolated: to.Isolated(), cfg: cfg, observer: waybill.Observers{cfg.Observer}, poison: newPoisonDetector()}
	if r.isolated == nil {
		r.isolated = to
	}
	r.batches.Store(1)
	for part := range r.wake {
		r.wake[part] = make(chan struct{}, 1)
	}
	return r, nil
}

// Run connects, relays until ctx ends, and returns nil once the claimed batches are settled.
// Errors of the broker and the database are retried; an outage is logged when it begins,
// each five minutes, and when it ends. With Drain it also returns once no due row is left, and
// returns an error that does not wrap waybill.ErrUnavailable, and the *BrokerError of a
// broker that it cannot use at its start. A second Run at the same time is refused.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("outbox: the relay runs already")
	}
	defer r.running.Store(false)
	transport := slog.String("transport", r.cfg.Transport)
	r.broken = outage.New(r.cfg.Log, slog.String("what", "broker"), transport) // anew: their loops are those of one Run
	r.unread = outage.New(r.cfg.Log, slog.String("what", "database"), transport)
	release, err := r.start(ctx)
	if err != nil || release == nil {
		return err
	}
	defer release()
	r.status = newStatus(r.store, r.cfg)
	defer r.status.end(ctx)
	down := r.connect(ctx, r.to)
	switch {
	case ctx.Err() != nil:
		return nil
	case down != nil && r.cfg.Drain:
		return down
	}
	r.introduce(ctx)
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
			if err := r.run(ctx, &loop{part: part, to: to, err: down, unconnected: down != nil}); err != nil {
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

// A loop is one of the goroutines of a relay.
type loop struct {
	part Part
	to   Publisher
	err  error // of the last attempt

	unconnected bool      // the last attempt could not connect
	lost        time.Time // when an attempt last found no broker
}

// run relays one part until ctx ends, or with Drain until nothing due is left. Of the
// idle loops of a part one polls: when it has claimed rows, the next one does.
func (r *Relay) run(ctx context.Context, l *loop) error {
	part := l.part
	// pause is the delay before the next claim of an idle part, again the delay
	// after an error. Both double up to their limits.
	pause, again := r.cfg.PollMin, outageMin
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
	for ctx.Err() == nil {
		slow := time.AfterFunc(slowClaim, passOn) // or idle loops would wait for it, too
		n, err := r.attempt(ctx, l, passOn)
		slow.Stop()
		l.err = err
		if err == nil {
			again = outageMin
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			passOn()
			if ended, err := r.rideOut(ctx, l, again); ended {
				return err
			}
			again = min(2*again, outageMax)
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

// countTimeout bounds the count of all rows, which ends a drain.
const countTimeout = time.Minute

// allWaits reports whether every pending row is parked, or blocked and not due.
func (r *Relay) allWaits(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	backlog, err := r.store.Backlog(ctx, r.cfg.Transport)
	return err == nil && backlog.Pending <= backlog.Blocked
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
