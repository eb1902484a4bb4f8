package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/crash"
	"github.com/waybill-go/waybill/internal/mutant"
)

// RelayConfig tunes a Relay. The zero value is fit for production.
type RelayConfig struct {
	// Transport is the one whose rows are relayed. Empty means DefaultTransport.
	Transport string
	// Batch is how many rows are claimed at once; zero means 500.
	Batch int
	// BatchBytes bounds the bodies and headers of a batch, and so the relay's
	// memory; zero means 2 MiB.
	BatchBytes int
	// Workers is how many batches are in hand at once. Zero means 2, or 1 where
	// the database allows no more.
	Workers int
	// Window is how many records of a batch may be unconfirmed at once; zero means 256.
	Window int
	// Pipelined lets several records of a key be unconfirmed at once, which is as
	// fast as without order. The publisher must be an OrderedPublisher, or an
	// AtomicPublisher, to which it makes no difference. When the
	// broker refuses one of them (a full queue that rejects, say), those of its key
	// behind it may have been stored: it then comes after them.
	Pipelined bool
	// PublishDeadline bounds the publishing of one batch, confirmations
	// included; zero means 10 s. Rows that were not begun in half of it stay for
	// the next batch.
	PublishDeadline time.Duration
	// Retry says how long a key that the broker refuses waits. Zero means 1 s
	// doubling to 5 min.
	Retry waybill.Backoff
	// MaxAttempts is how many refusals exhaust a key; zero means 10. It is an alert,
	// and OnExhausted is followed.
	MaxAttempts int
	// OnExhausted returns what becomes of a key whose head was refused MaxAttempts
	// times, by the name of that message. Nil means Halt for all. A route that leads
	// nowhere is no fault of its messages: it is tried on, at the longest delay. Park and
	// Skip need a FailureStore.
	OnExhausted func(messageName string) Policy
	// PollMin and PollMax bound the pause between looks at an idle outbox; zero
	// means 5 ms and 250 ms. A commit in the same process ends the pause.
	PollMin, PollMax time.Duration
	// Standby makes Run wait while another process relays the database, instead
	// of returning waybill.ErrRelayRunning.
	Standby bool
	// Drain makes Run return once nothing that is due is left.
	Drain bool
	// Log receives what the relay decides. Nil discards.
	Log *slog.Logger
	// Observer hears of every record. Nil means nobody.
	Observer waybill.Observer
}

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
	cfg.PublishDeadline = cmp.Or(cfg.PublishDeadline, 10*time.Second)
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
	store   Store
	to      Publisher
	cfg     RelayConfig
	trouble *trouble
	turns   *turns
	status  *status

	mu       sync.Mutex // guards what follows
	released time.Time  // when to look for released keys next
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
	if err := checkFence(store, to, cfg); err != nil {
		return nil, err
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
	return &Relay{store: store, to: to, cfg: cfg, trouble: newTrouble(), turns: newTurns(cfg.Workers)}, nil
}

// Run relays until ctx ends, and then returns nil after the batch in hand is
// settled. It rides out a broker or database that cannot be reached. With
// Drain it also returns when nothing due is left.
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
	var workers sync.WaitGroup
	errs := make([]error, r.cfg.Workers)
	for i := range errs {
		workers.Go(func() {
			if errs[i] = r.work(ctx); errs[i] != nil {
				stop()
			}
		})
	}
	workers.Wait()
	return errors.Join(errs...)
}

// work is one worker's loop.
func (r *Relay) work(ctx context.Context) error {
	wake := r.store.Wake(r.cfg.Transport)
	// pause is the wait before the next look while there is nothing to do, outage
	// the one while something is out of reach. Both double to their bounds.
	pause, outage := r.cfg.PollMin, outageMin
	woken := false // by a hint, and nothing was found since
	var err error
	for ctx.Err() == nil {
		n := 0
		if err = r.reach(ctx, err); err == nil {
			n, err = r.pass(ctx)
		}
		if err == nil {
			outage = outageMin
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			r.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "relay pass failed, will try again", slog.String("queue", r.cfg.Transport), slog.Duration("retry_in", outage), slog.Any("err", err))
			if r.cfg.Drain && !errors.Is(err, waybill.ErrUnavailable) {
				return err
			}
			if r.cfg.Drain && r.drained(ctx) {
				return nil // by a relay that is better off
			}
			sleep(ctx, outage, nil) // hints do not shorten an outage
			outage = min(2*outage, outageMax)
		case n > 0:
			pause, woken = r.cfg.PollMin, false
		default:
			if r.cfg.Drain && r.drained(ctx) {
				return nil
			}
			if woken { // another worker, which has just looked, may have kept it from us
				pause = min(recheck, r.cfg.PollMin)
			}
			if woken = sleep(ctx, pause, wake); woken {
				pause = r.cfg.PollMin
			} else {
				pause = min(2*pause, r.cfg.PollMax)
			}
		}
	}
	return nil
}

// recheck is the first pause after a hint that led to nothing.
const recheck = 500 * time.Microsecond

// outageMin and outageMax bound the pause after a pass that found the database
// or the broker out of reach.
const outageMin, outageMax = 50 * time.Millisecond, 2 * time.Second

// reach connects to the broker after a pass that failed with err. A relay
// without a broker claims nothing: the rows are for those that have one.
func (r *Relay) reach(ctx context.Context, err error) error {
	to, ok := r.to.(ConnectingPublisher)
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
		r.status.now(context.WithoutCancel(ctx), err) // or it could be stored after the last report
	}
	if !errors.Is(err, waybill.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", waybill.ErrUnavailable, err)
	}
	return fmt.Errorf("publish: %w", err)
}

// drained reports whether all that is left waits for a reason: what another
// worker or relay has in hand may still come back.
func (r *Relay) drained(ctx context.Context) bool {
	left, err := r.store.Left(ctx, r.cfg.Transport)
	return err == nil && left.Pending <= left.Blocked
}

// lead returns nil, nil when ctx ended while it stood by.
func (r *Relay) lead(ctx context.Context) (release func(), err error) {
	said := false
	for ctx.Err() == nil {
		release, err := r.store.Lead(ctx)
		switch {
		case err == nil:
			if said {
				r.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "took over", slog.String("queue", r.cfg.Transport))
			}
			return release, nil
		case ctx.Err() != nil:
			return nil, nil // stopped before it led
		case errors.Is(err, waybill.ErrUnavailable):
			r.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "cannot lead, will try again", slog.String("queue", r.cfg.Transport), slog.Any("err", err))
			sleep(ctx, 8*r.cfg.PollMax, nil)
		case errors.Is(err, waybill.ErrRelayRunning) && r.cfg.Standby:
			if !said {
				r.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "another relay runs, standing by", slog.String("queue", r.cfg.Transport))
				said = true
			}
			sleep(ctx, 10*r.cfg.PollMin, nil)
		default:
			return nil, err
		}
	}
	return nil, nil
}

// pass claims, publishes and settles one batch and returns how many rows it
// claimed. An outage of the broker is an error after what was confirmed has
// been settled.
func (r *Relay) pass(ctx context.Context) (int, error) {
	claiming, cancel := context.WithTimeout(ctx, r.cfg.PublishDeadline) // a network may swallow the answer
	defer cancel()
	claim, err := r.claim(claiming)
	if err != nil {
		return 0, fmt.Errorf("claim: %w", err)
	}
	rows := claim.Rows()
	if len(rows) == 0 {
		r.status.idle(ctx)
		return 0, nil
	}
	crash.At(crash.RelayAfterClaim)
	// The batch in hand outlives the stop signal: what the broker confirms must
	// be deleted, or it is published again.
	ctx = context.WithoutCancel(ctx)
	if mutant.Active(mutant.DeleteBeforeConfirm) {
		if err := claim.Settle(ctx, rows, nil); err != nil {
			return 0, err
		}
		crash.At(crash.RelayAfterSettle)
		r.publish(ctx, rows)
		crash.At(crash.RelayAfterPublish)
		return len(rows), nil
	}
	settled := false
	defer func() {
		if !settled { // a panic of the publisher: the claim must not outlive it
			_ = claim.Settle(ctx, nil, nil)
		}
	}()
	b := r.publish(ctx, rows)
	crash.At(crash.RelayAfterPublish)
	r.trouble.learn(b)
	done, failed := b.finished()
	if _, ok := r.store.(RouteStore); ok {
		failed = r.trouble.routes(done, failed)
	}
	for i := range failed {
		failed[i] = r.cfg.decide(failed[i])
	}
	settling, cancel := context.WithTimeout(ctx, r.cfg.PublishDeadline)
	defer cancel()
	settled = true
	if err := claim.Settle(settling, done, failed); err != nil {
		return 0, fmt.Errorf("settle: %w", err)
	}
	crash.At(crash.RelayAfterSettle)
	r.report(ctx, done, failed)
	r.status.now(ctx, b.Outage())
	if err := b.Outage(); err != nil {
		return 0, fmt.Errorf("publish: %w", err)
	}
	return len(rows), nil
}

// claim takes rows from the outbox, and now and then those of released keys from
// the failure store.
func (r *Relay) claim(ctx context.Context) (Claim, error) {
	max := Max{r.cfg.Batch, r.cfg.BatchBytes}
	if store, ok := r.store.(FailureStore); ok && r.looksForReleased() {
		claim, err := store.ClaimReleasing(ctx, r.cfg.Transport, max)
		if err != nil || len(claim.Rows()) > 0 {
			return claim, err
		}
	}
	return r.store.Claim(ctx, r.cfg.Transport, max)
}

// releasedEvery is how often released keys are looked for.
const releasedEvery = 200 * time.Millisecond

// looksForReleased reports whether it is time to, to one worker of the relay.
func (r *Relay) looksForReleased() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Before(r.released) {
		return false
	}
	r.released = now.Add(releasedEvery)
	return true
}

// decide says what is to become of what has failed. What OnExhausted returns and
// is no policy means Halt.
func (cfg RelayConfig) decide(f Failure) Failure {
	f.Policy = Halt
	if cfg.OnExhausted != nil && !f.Route {
		if policy := cfg.OnExhausted(f.Row.Record.Name); policy == Park || policy == Skip {
			f.Policy = policy
		}
	}
	if f.failures() < cfg.MaxAttempts {
		f.RetryIn = cfg.Retry.After(f.failures(), f.Err)
		return f
	}
	f.RetryIn, f.Exhausted = cfg.Retry.Longest(), f.Policy != Halt
	return f
}

// failures is how often the key or route has failed, this time included.
func (f Failure) failures() int {
	if f.Route {
		return f.Row.RouteFailures + 1
	}
	return f.Row.Failures + 1
}

// publish sends rows until each is confirmed, refused or held back behind one
// that was, or the broker is out of reach.
func (r *Relay) publish(ctx context.Context, rows []ClaimedRow) *batch {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.PublishDeadline)
	defer cancel()
	alone := r.trouble.alone(rows)
	giveBack := r.turns.take(ctx, slices.Max(append(alone, 0)) > 0)
	if giveBack == nil {
		return newBatch(rows, false, nil) // nothing was begun: all rows stay
	}
	defer giveBack()
	window := r.cfg.Window
	if _, atomic := r.to.(AtomicPublisher); atomic {
		b := newBatch(rows, true, nil)
		r.exchange(ctx, b, len(rows))
		done, failed := b.finished()
		if len(done) > 0 || len(failed) < 2 || b.Outage() != nil {
			return b
		}
		// All were refused for the sake of one: find out which, by a call for each,
		// because two in one call would share their fate again.
		window = 1
	}
	b := newBatch(rows, false, alone)
	if ordered, ok := r.to.(OrderedPublisher); ok && r.cfg.Pipelined {
		b.Pipeline(ordered.Stream)
		window = len(rows)
	}
	r.exchange(ctx, b, window)
	return b
}

// exchange publishes what b has ready and feeds the results back, with at most
// window records unconfirmed.
func (r *Relay) exchange(ctx context.Context, b *batch, window int) {
	results := make(chan Result, window)
	items := make([]Item, 0, window)
	// What is published near the deadline could be taken for an outage: the
	// second half of the time is for the confirmations.
	end, _ := ctx.Deadline()
	enough := end.Add(-r.cfg.PublishDeadline / 2)
	late := time.NewTimer(time.Until(end) + grace)
	defer late.Stop()
	for {
		if time.Now().After(enough) {
			b.Stop()
		}
		if items = b.take(window-b.Open(), items[:0]); len(items) > 0 {
			r.to.Publish(ctx, items, results)
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
		for more := true; more; { // what else is in, so that the next call carries more
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

// report tells what was settled.
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
	if f.failures() >= r.cfg.MaxAttempts {
		level = slog.LevelError // somebody has to look: waybill outbox blocked
	}
	switch {
	case f.Route:
		what = "nowhere to publish to, the route waits"
	case f.Parks():
		change, what, e.Delay = waybill.KeyParked, "publish refused for the last time, its key is parked: see waybill failed", 0
	case f.Exhausted:
		change, what, e.Delay = waybill.Skipped, "publish refused for the last time, the message is skipped: see waybill failed", 0
	}
	r.cfg.Observer.Observe(ctx, e)
	e.Kind = change
	r.cfg.Observer.Observe(ctx, e)
	r.cfg.Log.LogAttrs(ctx, level, what, slog.String("queue", r.cfg.Transport), slog.String("type", f.Row.Record.Name),
		slog.String("id", f.Row.Record.ID.String()), slog.Int("attempt", e.Failures), slog.Duration("retry_in", e.Delay), slog.Any("err", f.Err))
}

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
