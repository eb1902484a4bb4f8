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
	"github.com/waybill-go/waybill/internal/crash"
	"github.com/waybill-go/waybill/internal/mutant"
)

// RelayConfig tunes a Relay. The zero value is fit for production.
type RelayConfig struct {
	// Transport names the transport to relay. Empty means DefaultTransport.
	Transport string
	// Batch is how many rows are claimed at once; zero means 500.
	Batch int
	// BatchBytes bounds the bodies and headers of a batch, and so the relay's
	// memory; zero means 2 MiB.
	BatchBytes int
	// Workers is how many batches of messages with a key, and how many of messages
	// without, are published at once. Zero means 2, or 1 where the database allows no
	// more. Refused messages are retried beside them, one at a time.
	Workers int
	// Window is how many records of a batch may be unconfirmed at once; zero means 256.
	Window int
	// Pipelined lets several records of a key be unconfirmed at once, which is as
	// fast as without order. The publisher must be an OrderedPublisher, or an
	// AtomicPublisher, to which it makes no difference. When the broker refuses a
	// record (a full queue that rejects, say), later records of its key may be
	// stored already: its retry then arrives after them.
	Pipelined bool
	// PublishDeadline bounds the publishing of one batch, confirmations
	// included; zero means 10 s. Rows not sent in its first half stay for the next
	// batch.
	PublishDeadline time.Duration
	// Retry is the delay before a refused key is retried. Zero means 1 s doubling to
	// 5 min. A rejected record (RejectedError: a full queue) is retried after 100 ms.
	Retry waybill.Backoff
	// MaxAttempts is how many refusals exhaust a key; zero means 10. OnExhausted then
	// applies, and refusals are logged at level Error. Rejected records never exhaust
	// a key.
	MaxAttempts int
	// OnExhausted returns the policy for a key whose head was refused MaxAttempts
	// times, by the name of that message. Nil, and any value but Park and Skip, mean
	// Block. A blocked route is always retried, in the end at the longest delay.
	// OnExhausted needs a FailureStore.
	OnExhausted func(messageName string) Policy
	// PollMin and PollMax bound the pause between claims of an idle transport; zero
	// means 5 ms and 250 ms. A commit that Store.Wake reports ends the pause.
	PollMin, PollMax time.Duration
	// Standby makes Run wait while another process relays the database, instead
	// of returning waybill.ErrRelayRunning.
	Standby bool
	// Drain makes Run return once no due row is left.
	Drain bool
	// Log receives failures, outages and take-overs. Nil discards.
	Log *slog.Logger
	// Observer receives an event for every record. Nil means none.
	Observer waybill.Observer
}

const defaultPublishDeadline = 10 * time.Second

func (cfg RelayConfig) withDefaults() (RelayConfig, error) {
	for _, n := range []int{cfg.Batch, cfg.BatchBytes, cfg.Workers, cfg.Window, cfg.MaxAttempts, int(cfg.PublishDeadline), int(cfg.PollMin), int(cfg.PollMax)} {
		if n < 0 {
			return cfg, fmt.Errorf("outbox: relay config: %d is negative", n)
		}
	}
	if err := cfg.Retry.Validate(); err != nil {
		return cfg, err
	}
	cfg.Transport = cmp.Or(cfg.Transport, DefaultTransport)
	cfg.Batch = cmp.Or(cfg.Batch, 500)
	cfg.BatchBytes = cmp.Or(cfg.BatchBytes, 2<<20)
	cfg.Window = cmp.Or(cfg.Window, 256)
	cfg.MaxAttempts = cmp.Or(cfg.MaxAttempts, 10)
	cfg.PublishDeadline = cmp.Or(cfg.PublishDeadline, defaultPublishDeadline)
	cfg.PollMin = cmp.Or(cfg.PollMin, 5*time.Millisecond)
	cfg.PollMax = max(cmp.Or(cfg.PollMax, 250*time.Millisecond), cfg.PollMin)
	cfg.Retry.Multiplier = cmp.Or(cfg.Retry.Multiplier, 2)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Observer == nil {
		cfg.Observer = waybill.Observers{}
	}
	return cfg, nil
}

// A Relay moves the rows of one transport from a database's outbox to its
// broker: in commit order per key, at least once, all keys in parallel. It
// deletes a row after the broker confirmed it. Any number of relays may run,
// where the Store allows it.
type Relay struct {
	store    Store
	to       Publisher
	apart    Publisher // for retries
	cfg      RelayConfig
	suspects *suspects
	status   *status
	wake     [Retries + 1]chan struct{} // by part: wake-ups for its loops

	busy    atomic.Int32              // loops that claim, publish or settle
	batches atomic.Int64              // settled batches, plus 1
	empty   [Retries + 1]atomic.Int64 // by part: batches at the start of its last empty claim
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
	if idle, ok := store.(IdleStore); ok {
		if err := CheckFence(idle.IdleTimeout(), cfg.PublishDeadline, to); err != nil {
			return nil, err
		}
	}
	if _, keeps := store.(FailureStore); cfg.OnExhausted != nil && !keeps {
		return nil, errors.New("outbox: relay config: OnExhausted needs a database that keeps failed messages")
	}
	_, ordered := to.(OrderedPublisher)
	if _, atomic := to.(AtomicPublisher); cfg.Pipelined && !ordered && !atomic {
		return nil, errors.New("outbox: relay config: Pipelined needs a publisher that keeps the order of what is unconfirmed")
	}
	if _, shared := store.(IdleStore); cfg.Workers == 0 && shared {
		cfg.Workers = 2
	}
	cfg.Workers = max(cfg.Workers, 1)
	r := &Relay{store: store, to: to, apart: to, cfg: cfg, suspects: newSuspects()}
	r.batches.Store(1)
	if isolating, ok := to.(IsolatingPublisher); ok {
		r.apart = isolating.Isolated()
	}
	for part := range r.wake {
		r.wake[part] = make(chan struct{}, 1)
	}
	return r, nil
}

// Run relays until ctx ends, and returns nil once the claimed batches are settled.
// Errors of the broker and the database are logged and retried. With Drain it also
// returns once no due row is left, and returns an error that does not wrap
// waybill.ErrUnavailable.
func (r *Relay) Run(ctx context.Context) error {
	release, err := r.lead(ctx)
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
	begin(Retries, r.apart)
	hinting, hinted := context.WithCancel(ctx)
	var hints sync.WaitGroup
	hints.Go(func() { r.passOnHints(hinting) })
	loops.Wait()
	hinted()
	hints.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// passOnHints forwards the store's wake-ups to the loops of new rows.
func (r *Relay) passOnHints(ctx context.Context) {
	hints := r.store.Wake(r.cfg.Transport)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hints:
			r.hint(Keyed)
			r.hint(Unkeyed)
		}
	}
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

// loop relays one part until ctx ends, or with Drain until nothing due is left.
func (r *Relay) loop(ctx context.Context, part Part, to Publisher) error {
	// pause is the delay before the next claim of an idle part, outage the delay
	// after an error. Both double up to their limits.
	pause, outage := r.cfg.PollMin, outageMin
	woken := false // the last pause ended by a hint, and no rows were claimed since
	var err error
	for ctx.Err() == nil {
		n := 0
		if err = r.reconnect(ctx, to, err); err == nil {
			r.busy.Add(1)
			before := r.batches.Load()
			if n, err = r.relayBatch(ctx, part, to); n == 0 && err == nil {
				r.empty[part].Store(before)
			}
			r.busy.Add(-1)
		}
		if err == nil {
			outage = outageMin
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			r.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "relay pass failed, will try again", slog.String("transport", r.cfg.Transport), slog.String("part", part.String()), slog.Duration("retry_in", outage), slog.Any("err", err))
			if r.cfg.Drain && !errors.Is(err, waybill.ErrUnavailable) {
				return err
			}
			if r.cfg.Drain && r.allWaits(ctx) {
				return nil // another relay, with a connection, has published the rest
			}
			sleep(ctx, outage, nil) // hints do not shorten an outage
			outage = min(2*outage, outageMax)
		case n > 0:
			pause, woken = r.cfg.PollMin, false
		default:
			if r.cfg.Drain && r.drained(ctx) {
				return nil
			}
			if woken { // a concurrent claim that was too early may have held the lock
				pause = min(recheck, r.cfg.PollMin)
			}
			if woken = sleep(ctx, pause, r.wake[part]); woken {
				pause = r.cfg.PollMin
			} else {
				pause = min(2*pause, r.cfg.PollMax)
			}
		}
	}
	return nil
}

// recheck is the poll delay after a hint that found no rows.
const recheck = 500 * time.Microsecond

// outageMin and outageMax bound the delay after an error of the database or the
// broker.
const outageMin, outageMax = 50 * time.Millisecond, 2 * time.Second

// reconnect connects to the broker again if err, the last batch's, is an outage. A
// relay without a connection claims no rows, and leaves them to relays that have one.
func (r *Relay) reconnect(ctx context.Context, publisher Publisher, err error) error {
	to, ok := publisher.(ConnectingPublisher)
	if !ok || !errors.Is(err, waybill.ErrUnavailable) {
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
	left, err := r.store.Left(ctx, r.cfg.Transport)
	return err == nil && left.Pending <= left.Blocked
}

// lead acquires the right to relay, and waits for it with Standby or while the
// database is unavailable. It returns nil, nil if ctx ended first.
func (r *Relay) lead(ctx context.Context) (release func(), err error) {
	said := false
	for ctx.Err() == nil {
		release, err := r.store.Lead(ctx)
		switch {
		case err == nil:
			if said {
				r.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "took over", slog.String("transport", r.cfg.Transport))
			}
			return release, nil
		case ctx.Err() != nil:
			return nil, nil // stopped before it led
		case errors.Is(err, waybill.ErrUnavailable):
			r.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "relay lock not available, will try again", slog.String("transport", r.cfg.Transport), slog.Any("err", err))
			sleep(ctx, 8*r.cfg.PollMax, nil)
		case errors.Is(err, waybill.ErrRelayRunning) && r.cfg.Standby:
			if !said {
				r.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "another relay runs, standing by", slog.String("transport", r.cfg.Transport))
				said = true
			}
			sleep(ctx, 10*r.cfg.PollMin, nil)
		default:
			return nil, err
		}
	}
	return nil, nil
}

// relayBatch claims, publishes and settles one batch and returns how many rows it
// claimed. An outage of the broker is returned as an error once the confirmed rows
// are settled; for retries only if the broker answered for none.
func (r *Relay) relayBatch(ctx context.Context, part Part, to Publisher) (int, error) {
	claiming, cancel := context.WithTimeout(ctx, r.cfg.PublishDeadline) // a network may swallow the answer
	defer cancel()
	claim, err := r.store.Claim(claiming, r.cfg.Transport, part, ClaimLimit{r.cfg.Batch, r.cfg.BatchBytes})
	if err != nil {
		return 0, fmt.Errorf("claim: %w", err)
	}
	rows := claim.Rows()
	if len(rows) == 0 {
		r.status.idle(ctx)
		return 0, nil
	}
	crash.At(crash.RelayAfterClaim)
	// The batch outlives the stop signal: a confirmed row that is not deleted would be
	// published again.
	ctx = context.WithoutCancel(ctx)
	if mutant.Active(mutant.DeleteBeforeConfirm) {
		if err := claim.Settle(ctx, rows, nil); err != nil {
			return 0, err
		}
		crash.At(crash.RelayAfterSettle)
		r.publish(ctx, part, to, rows)
		crash.At(crash.RelayAfterPublish)
		return len(rows), nil
	}
	settled := false
	defer func() {
		if !settled { // a panic of the publisher: the claim must not outlive it
			_ = claim.Settle(ctx, nil, nil)
		}
	}()
	b := r.publish(ctx, part, to, rows)
	crash.At(crash.RelayAfterPublish)
	done, failed := r.judge(part, b)
	settling, cancel := context.WithTimeout(ctx, r.cfg.PublishDeadline)
	defer cancel()
	settled = true
	if err := claim.Settle(settling, done, failed); err != nil {
		return 0, fmt.Errorf("settle: %w", err)
	}
	crash.At(crash.RelayAfterSettle)
	r.batches.Add(1)
	r.report(ctx, done, failed)
	if part == Retries {
		r.hint(Keyed) // keys may be unblocked
	} else {
		r.hintAt(failed)
		r.status.now(ctx, b.Outage())
	}
	if err := b.Outage(); err != nil && (part != Retries || len(done)+b.refused() == 0) {
		return 0, fmt.Errorf("publish: %w", err)
	}
	return len(rows), nil
}

// judge returns the published rows of a batch, and its failures, each with its delay
// and policy.
func (r *Relay) judge(part Part, b *batch) (done []ClaimedRow, failed []Failure) {
	var apart []Failure
	if part == Retries {
		apart = r.suspects.convict(b)
	} else {
		apart = r.suspects.observe(b)
	}
	done, failed = b.finished()
	if _, ok := r.store.(RouteStore); ok && part != Retries {
		failed = r.suspects.routes(done, failed)
	}
	for i, f := range failed {
		f.Route = f.Route || f.Row.Route
		failed[i] = r.cfg.decide(f)
	}
	for _, f := range apart {
		f.Policy = r.cfg.policy(f)
		f.Route = f.Row.Route
		failed = append(failed, f)
	}
	return done, failed
}

// policy returns the policy of OnExhausted for a failure. A route, and any value but
// Park and Skip, mean Block.
func (cfg RelayConfig) policy(f Failure) Policy {
	if cfg.OnExhausted != nil && !f.Route {
		if policy := cfg.OnExhausted(f.Row.Record.Name); policy == Park || policy == Skip {
			return policy
		}
	}
	return Block
}

// rejectedPause is the delay before a rejected record is retried: a full queue may
// have room at any moment.
const rejectedPause = 100 * time.Millisecond

// decide sets the policy and the delay of a refused row, and whether it is exhausted.
func (cfg RelayConfig) decide(f Failure) Failure {
	f.Policy = cfg.policy(f)
	var rejected *RejectedError
	switch {
	case errors.As(f.Err, &rejected):
		f.RetryIn = rejectedPause
	case f.failures() < cfg.MaxAttempts:
		f.RetryIn = cfg.Retry.After(f.failures(), f.Err)
	default:
		f.RetryIn, f.Exhausted = cfg.Retry.Longest(), f.Policy != Block
	}
	return f
}

// failures returns how often the key or route was refused, this time included.
func (f Failure) failures() int { return f.Row.Failures + 1 }

// retriesShare divides the publish deadline for a batch of retries: a record that is
// never confirmed must not delay the retries behind it for long.
const retriesShare = 5

// publish sends rows until each is confirmed, refused or behind a refused row of its
// key, or the broker is unavailable, or half of the deadline has passed.
func (r *Relay) publish(ctx context.Context, part Part, to Publisher, rows []ClaimedRow) *batch {
	deadline := r.cfg.PublishDeadline
	if part == Retries {
		deadline /= retriesShare
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	window := r.cfg.Window
	if part == Retries {
		return r.retry(ctx, to, rows)
	} else if _, atomic := to.(AtomicPublisher); atomic {
		b := newBatch(rows, true)
		r.exchange(ctx, to, b, len(rows))
		if b.refused() < 2 || b.Outage() != nil {
			return b
		}
		// One bad item has failed the whole call: publish each item in a separate
		// call to find it.
		window = 1
	}
	b := newBatch(rows, false)
	if ordered, ok := to.(OrderedPublisher); ok && r.cfg.Pipelined {
		b.Pipeline(ordered.Stream)
		window = len(rows)
	}
	r.exchange(ctx, to, b, window)
	return b
}

// retry sends rows one at a time. After a lost connection it reconnects and continues
// with the next row.
func (r *Relay) retry(ctx context.Context, to Publisher, rows []ClaimedRow) *batch {
	b := newBatch(rows, false)
	for {
		before := b.unknown()
		r.exchange(ctx, to, b, 1)
		if b.unknown() == before || r.reconnect(ctx, to, b.Outage()) != nil {
			return b
		}
		b.Resume()
	}
}

// exchange publishes the ready records of b and records their results, with at most
// window records unconfirmed.
func (r *Relay) exchange(ctx context.Context, to Publisher, b *batch, window int) {
	results := make(chan Result, window)
	items := make([]Item, 0, window)
	// A record sent near the deadline could time out and be taken for an outage: the
	// second half of the time is for confirmations.
	end, _ := ctx.Deadline()
	enough := end.Add(-time.Until(end) / 2)
	late := time.NewTimer(time.Until(end) + grace)
	defer late.Stop()
	for {
		if time.Now().After(enough) {
			b.Stop()
		}
		if items = b.take(window-b.Open(), items[:0]); len(items) > 0 {
			to.Publish(ctx, items, results)
		}
		if b.Open() == 0 {
			return
		}
		select {
		case result := <-results:
			b.Done(result.Seq, result.Err)
			crash.At(crash.RelayInPublish)
		case <-late.C:
			b.Abandon(errNoAnswer)
			return
		}
		for more := true; more; { // drain further results, so that the next call carries more
			select {
			case result := <-results:
				b.Done(result.Seq, result.Err)
			default:
				more = false
			}
		}
	}
}

// grace is how long after its context's end a publisher may still answer.
const grace = 5 * time.Second

var errNoAnswer = fmt.Errorf("%w: the publisher does not answer after its deadline", waybill.ErrUnavailable)

// report emits the events and log lines of a settled batch.
func (r *Relay) report(ctx context.Context, done []ClaimedRow, failed []Failure) {
	for _, row := range done {
		e := waybill.Event{Kind: waybill.Published, ID: row.Record.ID, Name: row.Record.Name, Key: row.Record.Key, Transport: r.cfg.Transport, Duration: time.Since(row.Record.DispatchedAt)}
		r.cfg.Observer.Observe(ctx, e)
		if row.Failures > 0 {
			e.Kind = waybill.KeyReleased
			r.cfg.Observer.Observe(ctx, e)
		}
	}
	for _, f := range failed {
		r.reportFailure(ctx, f)
	}
}

func (r *Relay) reportFailure(ctx context.Context, f Failure) {
	e := waybill.Event{Kind: waybill.PublishFailed, ID: f.Row.Record.ID, Name: f.Row.Record.Name, Key: f.Row.Record.Key, Transport: r.cfg.Transport, Failures: f.failures(), Delay: f.RetryIn, Err: f.Err}
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
		what, e.Failures = "connection lost with the message in flight, to be tried apart", f.Row.Failures
	case f.Route:
		what = "unroutable, route blocked"
	case f.Parks():
		change, what, e.Delay = waybill.KeyParked, "publish refused for the last time, its key is parked: see waybill outbox blocked", 0
	case f.Exhausted:
		change, what, e.Delay = waybill.Skipped, "publish refused for the last time, the message is skipped: see waybill failed", 0
	}
	if !f.Suspect {
		r.cfg.Observer.Observe(ctx, e)
	}
	e.Kind = change
	r.cfg.Observer.Observe(ctx, e)
	r.cfg.Log.LogAttrs(ctx, level, what, slog.String("transport", r.cfg.Transport), slog.String("message", f.Row.Record.Name),
		slog.String("id", f.Row.Record.ID.String()), slog.Int("attempt", e.Failures), slog.Duration("retry_in", e.Delay), slog.Any("err", f.Err))
}

// logRejected is the sampling of repeated rejections in the log: with rejectedPause,
// one in ten seconds.
const logRejected = 100

// sleep waits for d, ctx or wake, and reports whether wake ended it.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-wake:
		return true
	}
	return false
}
