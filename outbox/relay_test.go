package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waytest"
)

// events is an observer that records every event.
type events struct {
	mu   sync.Mutex
	seen []waybill.Event
}

func (es *events) Observe(_ context.Context, e waybill.Event) {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.seen = append(es.seen, e)
}

func (es *events) all() []waybill.Event {
	es.mu.Lock()
	defer es.mu.Unlock()
	return slices.Clone(es.seen)
}

func (es *events) of(kind waybill.EventKind) []waybill.Event {
	return slices.DeleteFunc(es.all(), func(e waybill.Event) bool { return e.Kind != kind })
}

// broker is a publisher that answers for each record after delay, with refuse.
type broker struct {
	waytest.NoTraits
	refuse func(name string) error // nil accepts every record
	delay  time.Duration

	mu    sync.Mutex
	tries []string                   // all names, in the order of publishing
	got   []string                   // names of the confirmed records
	times map[string][]time.Duration // of tries, since start
	start time.Time
	wg    sync.WaitGroup
}

func newBroker() *broker { return &broker{times: map[string][]time.Duration{}, start: time.Now()} }

func (b *broker) Publish(ctx context.Context, items []outbox.Item, results chan<- outbox.Result) {
	for _, item := range items {
		b.mu.Lock()
		n := name(item.Record)
		b.tries = append(b.tries, n)
		b.times[n] = append(b.times[n], time.Since(b.start))
		answer := at(b.delay)
		b.mu.Unlock()
		b.wg.Go(func() {
			var err error
			select {
			case <-answer:
			case <-ctx.Done():
				err = fmt.Errorf("%w: %w", waybill.ErrUnavailable, ctx.Err())
			}
			b.mu.Lock()
			if err == nil && b.refuse != nil {
				err = b.refuse(n)
			}
			if err == nil {
				b.got = append(b.got, n)
			}
			b.mu.Unlock()
			results <- outbox.Result{Seq: item.Seq, Err: err}
		})
	}
}

// at returns a channel that is ready after d: a closed one if that is at once. Goroutines of a
// bubble must not receive from timers that are over at the same time: these share one context
// of the race detector, which crashes (go1.26, runtime/time.go, unlockAndRun).
func at(d time.Duration) <-chan time.Time {
	if d > 0 {
		return time.After(d)
	}
	over := make(chan time.Time)
	close(over)
	return over
}

// set changes the delay while a relay runs.
func (b *broker) set(delay time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.delay = delay
}

func (b *broker) confirmed() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.got, " ")
}

// refusing returns a function that refuses name the first times calls.
func refusing(name string, times int) func(string) error {
	return func(n string) error {
		if n == name && times > 0 {
			times--
			return errDeclined
		}
		return nil
	}
}

// A yard is a database with an outbox, a broker, and the events of a relay.
type yard struct {
	t      testing.TB
	db     *memory.DB
	out    *outbox.Outbox[*memory.Tx]
	broker *broker
	events events
	cfg    outbox.RelayConfig
}

func newYard(t testing.TB) *yard {
	t.Helper()
	y := &yard{t: t, db: memory.NewDB(), broker: newBroker()}
	y.out = newOutbox(t, y.db, outbox.Config{})
	y.cfg = outbox.RelayConfig{Observer: &y.events, Retry: waybill.Backoff{Jitter: -1}}
	return y
}

func (y *yard) dispatch(steps ...step) {
	y.t.Helper()
	for _, s := range steps {
		err := y.out.InTx(y.t.Context(), func(ctx context.Context, tx outbox.Tx[*memory.Tx]) error {
			_, err := tx.Dispatch(ctx, s)
			return err
		})
		if err != nil {
			y.t.Fatal(err)
		}
	}
}

func newRelay(t testing.TB, store outbox.Store, to outbox.Publisher, cfg outbox.RelayConfig) *outbox.Relay {
	t.Helper()
	relay, err := outbox.NewRelay(store, to, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return relay
}

// start runs a relay until the returned function is called, which waits for it.
func (y *yard) start(store outbox.Store) (stop func()) {
	y.t.Helper()
	relay := newRelay(y.t, store, y.broker, y.cfg)
	ctx, cancel := context.WithCancel(y.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	return func() {
		y.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			y.t.Errorf("Run = %v, want nil after a clean stop", err)
		}
	}
}

func (y *yard) wantConfirmed(want string) {
	y.t.Helper()
	if got := y.broker.confirmed(); got != want {
		y.t.Errorf("confirmed %q, want %q", got, want)
	}
}

func (y *yard) wantPending(want string) {
	y.t.Helper()
	if got := names(y.db.Pending("")); got != want {
		y.t.Errorf("pending %q, want %q", got, want)
	}
}

func TestDrainPublishesAllThatIsDueAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.cfg.Drain, y.cfg.Batch, y.cfg.Window = true, 7, 3
		y.broker.delay = time.Second
		var want []string
		for n := range 20 {
			y.dispatch(step{"a", n}, step{"", n})
			want = append(want, fmt.Sprint("a", n))
		}
		if err := newRelay(t, y.db, y.broker, y.cfg).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		y.wantPending("")
		got := slices.DeleteFunc(y.broker.got, func(n string) bool { return n[0] != 'a' })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("key a (-want +got):\n%s", diff)
		}
		if got := len(y.events.of(waybill.Published)); got != 40 {
			t.Errorf("%d published events, want 40", got)
		}
	})
}

// The clock of a dispatcher may be ahead of the relay's. A sum of times that falls is a restart to Prometheus.
func TestTimeSinceADispatchIsNeverNegative(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.cfg.Drain = true
		y.broker.delay = time.Second
		for n, ahead := range []time.Duration{0, time.Minute} {
			rec := &waybill.Record{ID: waybill.MessageID{byte(n + 1)}, Name: "step", Body: []byte("{}"), DispatchedAt: time.Now().Add(ahead)}
			if err := y.db.InTx(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
				return y.db.Write(ctx, tx, outbox.Row{Record: rec, Transport: outbox.DefaultTransport})
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := newRelay(t, y.db, y.broker, y.cfg).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		var took []time.Duration
		for _, e := range y.events.of(waybill.Published) {
			took = append(took, e.Duration)
		}
		if want := []time.Duration{time.Second, 0}; !slices.Equal(took, want) {
			t.Errorf("the times from dispatch to confirmation are %v, want %v", took, want)
		}
	})
}

func TestRefusedKeyBacksOffAndOthersFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.broker.refuse = refusing("a1", 3)
		y.dispatch(step{"a", 1}, step{"b", 1}, step{"a", 2}, step{"b", 2})
		stop := y.start(y.db)
		synctest.Wait()
		y.wantConfirmed("b1 b2")
		y.dispatch(step{"a", 3}, step{"b", 3})
		synctest.Wait()
		y.wantConfirmed("b1 b2 b3") // at once: a commit wakes the relay
		y.wantPending("a1 a2 a3")
		time.Sleep(time.Minute)
		stop()
		y.wantConfirmed("b1 b2 b3 a1 a2 a3")
		y.wantPending("")
		// After 1, 2 and 4 s, each noticed within the longest pause.
		want := []time.Duration{0, 1, 3, 7}
		for i, at := range y.broker.times["a1"] {
			if late := at - want[i]*time.Second; late < 0 || late > time.Second {
				t.Errorf("try %d of a1 came after %v, want %v s", i+1, at, want[i])
			}
		}
		blocked, released := y.events.of(waybill.KeyBlocked), y.events.of(waybill.KeyReleased)
		if len(blocked) != 3 || blocked[2].Failures != 3 || blocked[2].Key != "a" || len(released) != 1 || released[0].Key != "a" {
			t.Errorf("blocked %+v, released %+v, want three and one of key a", blocked, released)
		}
	})
}

func TestKeyThatKeepsBeingRefusedIsTriedAtTheLongestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.cfg.MaxAttempts = 3
		y.broker.refuse = refusing("a1", 1000)
		y.dispatch(step{"a", 1}, step{"a", 2})
		stop := y.start(y.db)
		time.Sleep(17 * time.Minute)
		stop()
		var delays []time.Duration
		for _, e := range y.events.of(waybill.PublishFailed) {
			delays = append(delays, e.Delay)
		}
		want := []time.Duration{time.Second, 2 * time.Second, 5 * time.Minute, 5 * time.Minute, 5 * time.Minute, 5 * time.Minute}
		if diff := cmp.Diff(want, delays); diff != "" {
			t.Errorf("delays (-want +got):\n%s", diff)
		}
		y.wantPending("a1 a2")
	})
}

func TestOutageIsRiddenOutAndCountsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		end := time.Now().Add(time.Hour)
		y.broker.refuse = func(string) error {
			if time.Now().Before(end) {
				return fmt.Errorf("dial: %w", waybill.ErrUnavailable)
			}
			return nil
		}
		y.dispatch(step{"a", 1}, step{"a", 2}, step{"b", 1})
		stop := y.start(y.db)
		time.Sleep(61 * time.Minute)
		stop()
		keyA := slices.DeleteFunc(slices.Clone(y.broker.got), func(n string) bool { return n == "b1" })
		if !cmp.Equal(keyA, []string{"a1", "a2"}) || !strings.Contains(y.broker.confirmed(), "b1") {
			t.Errorf("confirmed %q, want all, and a1 before a2", y.broker.confirmed())
		}
		if failed := y.events.of(waybill.PublishFailed); len(failed) > 0 {
			t.Errorf("failures %+v, want none: the broker refused no record", failed)
		}
		if tries := len(y.broker.tries); tries > 2*(60*60/2)+20 {
			t.Errorf("%d tries in an hour, want a pause of up to 2 s between batches", tries)
		}
	})
}

func TestBrokerThatDoesNotAnswerIsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.cfg.PublishDeadline = 5 * time.Second
		y.broker.delay = time.Hour
		y.dispatch(step{"a", 1})
		stop := y.start(y.db)
		time.Sleep(12 * time.Second)
		y.broker.set(0)
		time.Sleep(10 * time.Second)
		stop()
		y.wantConfirmed("a1")
		if failed := y.events.of(waybill.PublishFailed); len(failed) > 0 {
			t.Errorf("failures %+v, want none", failed)
		}
	})
}

func TestIdleRelayPollsLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		store := &scripted{Store: y.db}
		stop := y.start(store)
		time.Sleep(time.Minute)
		stop()
		pauses := store.pauses()
		if len(pauses) < 10 || pauses[0] != 5*time.Millisecond || pauses[1] != 10*time.Millisecond || pauses[len(pauses)-1] != 250*time.Millisecond {
			t.Fatalf("pauses %v, want 5ms doubling to 250ms", pauses)
		}
		if !slices.IsSorted(pauses) {
			t.Errorf("pauses %v, want them to grow", pauses)
		}
	})
}

// A loop that has claimed rows hands polling over to the next, also while it publishes.
func TestOneOfTheIdleLoopsPolls(t *testing.T) {
	claims := func(workers int) (claims int, waited time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			y := newYard(t)
			y.cfg.Workers = workers
			store := &scripted{Store: y.db}
			stop := y.start(store)
			time.Sleep(time.Minute)
			claims = len(store.pauses())
			y.broker.delay = time.Second
			y.dispatch(step{"a", 1})
			time.Sleep(500 * time.Millisecond)
			before := time.Now()
			y.dispatch(step{"b", 1})
			time.Sleep(2 * time.Second)
			stop()
			y.wantConfirmed("a1 b1")
			waited = y.broker.start.Add(y.broker.times["b1"][0]).Sub(before)
		})
		return claims, waited
	}
	one, _ := claims(1)
	four, waited := claims(4)
	if four > one+3 {
		t.Errorf("four idle workers claim %d times a minute, one %d times", four, one)
	}
	if waited > 300*time.Millisecond {
		t.Errorf("a message waited %v for a loop while another loop published", waited)
	}
}

// A longest pause below the default of the shortest one is no longer than it says.
func TestPollMaxAloneBoundsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.cfg.PollMax = time.Millisecond
		var claims atomic.Int64
		stop := y.start(&scripted{Store: y.db, claim: func() error { claims.Add(1); return nil }})
		time.Sleep(time.Second)
		stop()
		if n := claims.Load(); n < 900 {
			t.Errorf("%d claims in a second, want one a millisecond", n)
		}
	})
}

// A claim that takes long, because of the network or of delayed messages, holds up no
// other loop of its part.
func TestSlowClaimLeavesPollingToAnotherLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.cfg.Workers, y.cfg.PollMin, y.cfg.PollMax = 2, time.Minute, time.Minute
		var slow atomic.Bool
		store := &scripted{Store: y.db, claim: func() error {
			if slow.CompareAndSwap(true, false) {
				time.Sleep(time.Second)
			}
			return nil
		}}
		stop := y.start(store)
		synctest.Wait()
		slow.Store(true)
		time.Sleep(time.Minute + time.Millisecond) // the loop that polls is in its claim
		before := time.Now()
		y.dispatch(step{"a", 1})
		time.Sleep(2 * time.Second)
		stop()
		y.wantConfirmed("a1")
		if waited := y.broker.start.Add(y.broker.times["a1"][0]).Sub(before); waited > slowest {
			t.Errorf("a message waited %v for a loop while another one claimed", waited)
		}
	})
}

// slowest is the time that a commit may wait for another loop to poll.
const slowest = 50 * time.Millisecond

func TestRelayRunsOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		relay, err := outbox.NewRelay(y.db, y.broker, y.cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		synctest.Wait()
		if err := relay.Run(ctx); err == nil || !strings.Contains(err.Error(), "runs already") {
			t.Errorf("a second Run: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := relay.Run(ctx); err != nil {
			t.Errorf("Run after Run: %v", err)
		}
	})
}

func TestCommitEndsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.cfg.PollMin, y.cfg.PollMax = time.Hour, 2*time.Hour
		stop := y.start(y.db)
		time.Sleep(10 * time.Minute)
		before := time.Now()
		y.dispatch(step{"a", 1})
		synctest.Wait()
		y.wantConfirmed("a1")
		if waited := time.Since(before); waited != 0 {
			t.Errorf("published after %v, want at once", waited)
		}
		stop()
	})
}

// A hint may reach a worker while the claim of another one, begun a moment before the
// commit, holds the lock of the bucket.
func TestHintThatLedToNothingIsFollowedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.cfg.PollMin, y.cfg.PollMax = time.Hour, 2*time.Hour
		store := &keeping{scripted: &scripted{Store: y.db}}
		stop := y.start(store)
		synctest.Wait()
		before := time.Now()
		y.dispatch(step{"a", 1})
		time.Sleep(10 * time.Millisecond)
		y.wantConfirmed("a1")
		want := []time.Duration{before.Sub(y.broker.start) + 500*time.Microsecond}
		if diff := cmp.Diff(want, y.broker.times["a1"]); diff != "" {
			t.Errorf("published at (-want +got)\n%s", diff)
		}
		stop()
	})
}

// keeping is a store whose second claim of keyed rows finds nothing.
type keeping struct {
	*scripted
	claims int
}

func (k *keeping) Claim(ctx context.Context, transport string, part outbox.Part, most outbox.ClaimLimit) (outbox.Claim, error) {
	if part == outbox.Keyed {
		if k.claims++; k.claims == 2 {
			most.Rows = 0
		}
	}
	return k.scripted.Claim(ctx, transport, part, most)
}

func TestStopSettlesTheBatchInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.broker.delay = 3 * time.Second
		y.dispatch(step{"a", 1}, step{"b", 1})
		stop := y.start(y.db)
		time.Sleep(time.Second)
		start := time.Now()
		stop()
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("Run took %v to stop, want the 2 s until the broker answers", took)
		}
		y.wantPending("")
		y.broker.wg.Wait()
	})
}

func TestTwoRelaysKeepTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.cfg.Batch = 3
		y.broker.delay = 10 * time.Millisecond
		y.broker.refuse = refusing("b7", 2)
		one, two := y.start(y.db), y.start(y.db)
		want := map[string][]string{}
		for n := range 30 {
			for _, k := range []string{"a", "b", "c"} {
				y.dispatch(step{k, n})
				want[k] = append(want[k], fmt.Sprint(k, n))
			}
			time.Sleep(7 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		one()
		two()
		got := map[string][]string{}
		for _, n := range y.broker.got {
			got[n[:1]] = append(got[n[:1]], n)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("published by key (-want +got):\n%s", diff)
		}
	})
}

// scripted is a store with faults.
type scripted struct {
	outbox.Store
	lead   func() error
	silent bool // the next start is not answered
	claim  func() error
	settle func() error

	mu    sync.Mutex
	looks []time.Time
}

func (s *scripted) pauses() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []time.Duration
	for i := range len(s.looks) - 1 {
		all = append(all, s.looks[i+1].Sub(s.looks[i]))
	}
	return all
}

func (s *scripted) StartRelay(ctx context.Context) (func(), error) {
	if s.silent {
		s.silent = false
		<-ctx.Done()
		return nil, fmt.Errorf("%w: %w", waybill.ErrUnavailable, ctx.Err())
	}
	if s.lead != nil {
		if err := s.lead(); err != nil {
			return nil, err
		}
	}
	return s.Store.StartRelay(ctx)
}

func (s *scripted) Claim(ctx context.Context, transport string, part outbox.Part, most outbox.ClaimLimit) (outbox.Claim, error) {
	if part != outbox.Keyed { // faults are for one loop
		return s.Store.Claim(ctx, transport, part, most)
	}
	s.mu.Lock()
	s.looks = append(s.looks, time.Now())
	s.mu.Unlock()
	if s.claim != nil {
		if err := s.claim(); err != nil {
			return nil, err
		}
	}
	claim, err := s.Store.Claim(ctx, transport, part, most)
	return scriptedClaim{claim, s}, err
}

type scriptedClaim struct {
	outbox.Claim
	s *scripted
}

func (c scriptedClaim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	if c.s.settle != nil {
		if err := c.s.settle(); err != nil {
			_ = c.Claim.Settle(ctx, nil, nil) // the transaction is rolled back
			return err
		}
	}
	return c.Claim.Settle(ctx, published, failed)
}

func TestUnreachableDatabaseIsRiddenOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		claims, settles := 0, 0
		store := &scripted{Store: y.db}
		store.claim = func() error {
			if claims++; claims < 20 {
				return waybill.ErrUnavailable
			}
			return nil
		}
		store.settle = func() error {
			if settles++; settles == 1 {
				return waybill.ErrUnavailable
			}
			return nil
		}
		y.dispatch(step{"a", 1})
		stop := y.start(store)
		time.Sleep(time.Minute)
		stop()
		y.wantConfirmed("a1 a1") // the first batch was not settled: at least once
		y.wantPending("")
		if last := store.pauses()[18]; last != 2*time.Second {
			t.Errorf("pause between claims in an outage is %v, want 2s", last)
		}
	})
}

// A connecting publisher loses its connection at the first publish and can connect again
// from until on.
type connecting struct {
	outbox.Publisher
	lost  atomic.Bool
	until time.Time
	tries atomic.Int32
}

func (c *connecting) Connect(context.Context) error {
	c.tries.Add(1)
	if c.lost.Load() && time.Now().Before(c.until) {
		return waybill.ErrUnavailable
	}
	return nil
}

func (c *connecting) Publish(ctx context.Context, items []outbox.Item, results chan<- outbox.Result) {
	if c.lost.Swap(true) {
		c.Publisher.Publish(ctx, items, results)
		return
	}
	for _, item := range items {
		results <- outbox.Result{Seq: item.Seq, Err: waybill.ErrUnavailable}
	}
}

func TestRelayWithoutABrokerClaimsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		var claims atomic.Int32
		store := &scripted{Store: y.db, claim: func() error { claims.Add(1); return nil }}
		to := &connecting{Publisher: y.broker, until: time.Now().Add(time.Minute)}
		y.dispatch(step{"a", 1})
		r, err := outbox.NewRelay(store, to, y.cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		time.Sleep(59 * time.Second)
		if claims.Load() != 1 || to.tries.Load() < 10 {
			t.Errorf("%d claims and %d attempts to connect in a minute without a broker, want 1 claim and more attempts", claims.Load(), to.tries.Load())
		}
		time.Sleep(10 * time.Second)
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		y.wantConfirmed("a1")
	})
}

func TestStandbyWaitsForTheLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		free := time.Now().Add(time.Minute)
		store := &scripted{Store: y.db, lead: func() error {
			if time.Now().Before(free) {
				return fmt.Errorf("%w (elsewhere)", waybill.ErrRelayRunning)
			}
			return nil
		}}
		if err := newRelay(t, store, y.broker, y.cfg).Run(t.Context()); err == nil {
			t.Error("Run beside another relay = nil, want an error")
		}
		y.cfg.Standby = true
		y.start(store)() // stops while it stands by
		y.dispatch(step{"a", 1})
		stop := y.start(store)
		time.Sleep(59 * time.Second)
		synctest.Wait()
		y.wantConfirmed("")
		time.Sleep(2 * time.Second)
		y.wantConfirmed("a1")
		stop()
	})
}

func TestDrainEndsWithAnErrorThatNoRetryMends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.cfg.Drain = true
		store := &scripted{Store: y.db, claim: func() error { return errDeclined }}
		if err := newRelay(t, store, y.broker, y.cfg).Run(t.Context()); err == nil || !strings.Contains(err.Error(), errDeclined.Error()) {
			t.Errorf("Run = %v, want %v", err, errDeclined)
		}
	})
}

// atomically is a publisher that stores all items of a call or none.
type atomically struct {
	waytest.NoTraits
	calls  []string
	refuse string
}

func (a *atomically) Traits() outbox.PublisherTraits { return outbox.PublisherTraits{Atomic: true} }

func (a *atomically) Publish(_ context.Context, items []outbox.Item, results chan<- outbox.Result) {
	var recs []*waybill.Record
	var err error
	for _, item := range items {
		recs = append(recs, item.Record)
		if name(item.Record) == a.refuse {
			err = errDeclined
		}
	}
	a.calls = append(a.calls, names(recs))
	for _, item := range items {
		results <- outbox.Result{Seq: item.Seq, Err: err}
	}
}

func TestAtomicPublisherGetsTheWholeBatch(t *testing.T) {
	y := newYard(t)
	y.cfg.Drain = true
	y.dispatch(step{"a", 1}, step{"a", 2}, step{"b", 1}, step{"a", 3})
	to := &atomically{}
	if err := newRelay(t, y.db, to, y.cfg).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a1 a2 b1 a3"}, to.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestCulpritOfARefusedBatchIsFound(t *testing.T) {
	for _, steps := range [][]step{
		{{"a", 1}, {"a", 2}, {"b", 1}, {"a", 3}},
		{{"a", 1}, {"a", 2}, {"a", 3}}, // of one key alone
	} {
		y := newYard(t)
		y.cfg.Drain = true
		y.dispatch(steps...)
		if err := newRelay(t, y.db, &atomically{refuse: "a2"}, y.cfg).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		y.wantPending("a2 a3")
		if failed := y.events.of(waybill.PublishFailed); len(failed) != 1 || failed[0].Key != "a" {
			t.Errorf("failures %+v, want the one of key a", failed)
		}
	}
}

// panicking is a publisher with a bug.
type panicking struct{ waytest.NoTraits }

func (panicking) Publish(context.Context, []outbox.Item, chan<- outbox.Result) { panic("a bug") }

// claimed is a store that counts its open claims.
type claimed struct {
	outbox.Store
	open int
}

func (s *claimed) Claim(ctx context.Context, transport string, part outbox.Part, limit outbox.ClaimLimit) (outbox.Claim, error) {
	c, err := s.Store.Claim(ctx, transport, part, limit)
	if err == nil && len(c.Rows()) > 0 {
		s.open++
	}
	return claimedClaim{c, s}, err
}

type claimedClaim struct {
	outbox.Claim
	store *claimed
}

func (c claimedClaim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	c.store.open--
	return c.Claim.Settle(ctx, published, failed)
}

func TestPanicOfThePublisherEndsItsClaim(t *testing.T) {
	y := newYard(t)
	y.dispatch(step{"a", 1})
	store := &claimed{Store: y.db}
	r := newRelay(t, store, panicking{}, y.cfg)
	func() {
		defer func() { _ = recover() }()
		_, _ = outbox.RelayBatch(r, t.Context(), outbox.Keyed)
	}()
	if store.open != 0 {
		t.Errorf("%d claims are open, want none", store.open)
	}
	y.wantPending("a1")
}

func TestWrongRelayConfigIsRefused(t *testing.T) {
	for _, cfg := range []outbox.RelayConfig{
		{Batch: -1}, {BatchBytes: -1}, {Window: -1}, {MaxAttempts: -1}, {PublishDeadline: -1}, {PollMin: -1}, {PollMax: -1},
		{PollMin: time.Second, PollMax: 100 * time.Millisecond}, {Retry: waybill.Backoff{Delay: -1}}, {Retry: waybill.Backoff{Multiplier: 0.1}}, {Retry: waybill.Backoff{Jitter: 1.1}},
	} {
		if r, err := outbox.NewRelay(memory.NewDB(), newBroker(), cfg); err == nil {
			t.Errorf("NewRelay(%+v) = %v, nil, want an error", cfg, r)
		}
	}
}

// A retry that loses the connection does not stop the retries behind it.
func TestRetryThatEndsTheConnectionHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.broker.refuse = func(string) error { return errDeclined }
		y.dispatch(step{"a", 1}, step{"b", 1}, step{"c", 1})
		r := newRelay(t, y.db, y.broker, y.cfg)
		if _, err := outbox.RelayBatch(r, t.Context(), outbox.Keyed); err != nil {
			t.Fatal(err)
		}
		y.broker.refuse = func(name string) error {
			if name == "a1" {
				return &outbox.ConnectionLostError{Err: errDeclined}
			}
			return nil
		}
		time.Sleep(2 * time.Second) // all three are due
		if n, err := outbox.RelayBatch(r, t.Context(), outbox.Retries); n != 3 || err != nil {
			t.Errorf("a batch of %d retries, %v, want 3", n, err)
		}
		y.wantConfirmed("b1 c1")
		y.wantPending("a1")
	})
}
