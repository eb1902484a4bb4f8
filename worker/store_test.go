package worker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/worker"
)

// stored returns a fixture whose worker has a store.
func stored(t *testing.T) *fixture {
	p := newFixture(t)
	p.cfg.Store = p.db
	p.cfg.Retry = waybill.Backoff{Jitter: -1}
	return p
}

// handleAfterAFailure declines the first attempt, and handles all others.
func (p *fixture) handleAfterAFailure() {
	failed := false
	p.handle(func(context.Context, job) error {
		if !failed {
			failed = true
			return errDeclined
		}
		return nil
	})
}

// wantAttempts checks the dead letters by their number of attempts.
func (p *fixture) wantAttempts(want ...int) {
	p.t.Helper()
	var got []int
	for _, l := range p.db.DeadLetters("failed") {
		got = append(got, len(l.Attempts))
	}
	if !slices.Equal(got, want) {
		p.t.Errorf("dead letters with %v attempts, want %v", got, want)
	}
}

// wantDoneOf checks the messages of a key that were handled, in order.
func (p *fixture) wantDoneOf(key, want string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	others := func(name string) bool { return !strings.HasPrefix(name, key) }
	if got := strings.Join(slices.DeleteFunc(slices.Clone(p.done), others), " "); got != want {
		p.t.Errorf("handled %q, want %q", got, want)
	}
}

func TestFailedMessageWaitsInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		fails := 3
		p.handle(func(context.Context, job) error {
			if fails--; fails >= 0 {
				return errDeclined
			}
			return nil
		})
		p.send(job{"", 1})
		stop := p.start(p.queue)
		time.Sleep(500 * time.Millisecond)
		p.wantBacklog(0)
		if got := p.db.Waiting("jobs"); got != 1 {
			t.Errorf("%d messages wait for a retry, want 1", got)
		}
		time.Sleep(3 * time.Second)
		noError(t, stop()) // a restart in between changes nothing
		stop = p.start(p.queue)
		time.Sleep(20 * time.Second)
		noError(t, stop())
		p.wantDone("1")
		if got := p.db.Waiting("jobs"); got != 0 {
			t.Errorf("%d messages wait for a retry, want none", got)
		}
		var delays []time.Duration
		for _, e := range p.of(waybill.Retrying) {
			delays = append(delays, e.Delay)
		}
		if want := []time.Duration{time.Second, 3 * time.Second, 9 * time.Second}; !slices.Equal(delays, want) {
			t.Errorf("retries after %v, want %v", delays, want)
		}
	})
}

func TestRetriesEndInTheDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		p.handle(func(context.Context, job) error { return errDeclined })
		p.send(job{"", 1})
		stop := p.start(p.queue)
		time.Sleep(time.Hour)
		p.wantBacklog(0)
		p.wantAttempts(9)
		for range 10 { // replays that fail stay one entry
			if got := p.db.Replay("failed"); got != 1 {
				t.Fatalf("%d messages replayed, want 1", got)
			}
			time.Sleep(time.Hour)
		}
		noError(t, stop())
		p.wantAttempts(99)
		l := p.db.DeadLetters("failed")[0]
		if got := l.Attempts[0]; got.Handler != "do" || !strings.Contains(got.Error, "declined") || got.Worker == "" || got.At.IsZero() {
			t.Errorf("attempt %+v, want handler, error, worker and time", got)
		}
		if string(l.Record.Body) != `{"K":"","N":1}` {
			t.Errorf("body %s", l.Record.Body)
		}
	})
}

func TestReplayThatSucceedsClosesTheDeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		mended := false
		p.handle(func(context.Context, job) error {
			if !mended {
				return waybill.Unrecoverable(errDeclined)
			}
			return nil
		})
		p.send(job{"", 1})
		stop := p.start(p.queue)
		time.Sleep(time.Second)
		p.wantAttempts(1) // unrecoverable means once
		mended = true
		p.db.Replay("failed")
		time.Sleep(time.Second)
		noError(t, stop())
		p.wantAttempts()
		p.wantDone("1")
		if got := len(p.of(waybill.Skipped)); got != 1 {
			t.Errorf("%d events of a message skipped, want 1", got)
		}
	})
}

// Messages of a key that arrive while its head waits are handled after it, also by
// another worker; other keys are not delayed.
func TestKeyWaitsBehindItsRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		fails := 4
		p.handle(func(_ context.Context, j job) error {
			if j == (job{"a", 3}) {
				if fails--; fails >= 0 {
					return errDeclined
				}
			}
			return nil
		})
		p.send(job{"a", 1}, job{"a", 2}, job{"a", 3}, job{"a", 4}, job{"b", 1})
		stop := p.start(p.queue)
		time.Sleep(500 * time.Millisecond)
		p.wantDoneOf("a", "a1 a2")
		p.wantDoneOf("b", "b1")
		p.send(job{"a", 5}, job{"b", 2})
		time.Sleep(3 * time.Second)
		noError(t, stop())
		p.send(job{"a", 6}, job{"b", 3})
		stop = p.start(p.db.Queue("jobs")) // a successor knows nothing of the first
		time.Sleep(5 * time.Second)
		p.wantDoneOf("a", "a1 a2")
		p.wantDoneOf("b", "b1 b2 b3")
		p.wantBacklog(0) // all of them wait in the store
		time.Sleep(time.Minute)
		p.send(job{"a", 7})
		time.Sleep(time.Second)
		noError(t, stop())
		p.wantDoneOf("a", "a1 a2 a3 a4 a5 a6 a7")
		if got := p.db.Waiting("jobs"); got != 0 {
			t.Errorf("%d messages in the retry queue, want none", got)
		}
	})
}

// After its last message in the store a key is handled from the transport again.
func TestKeyReturnsToTheTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		watched := &watchedStore{Store: p.db}
		p.cfg.Store = watched
		p.handleAfterAFailure()
		stop := p.start(p.queue)
		for n := range 5 {
			p.send(job{"a", n})
			time.Sleep(10 * time.Second)
		}
		noError(t, stop())
		p.wantDone("a0 a1 a2 a3 a4")
		if watched.added != 1 {
			t.Errorf("%d messages went through the store, want the first alone", watched.added)
		}
	})
}

// A watchedStore counts what is added to it, and can fail.
type watchedStore struct {
	worker.Store
	added int
	fail  func(moves []worker.Move) error
}

func (s *watchedStore) RetryQueue(transport string) (worker.RetryQueue, error) {
	q, err := s.Store.RetryQueue(transport)
	return &watchedQueue{q, s}, err
}

type watchedQueue struct {
	worker.RetryQueue
	store *watchedStore
}

func (q *watchedQueue) Add(ctx context.Context, moves ...worker.Move) error {
	if q.store.fail != nil {
		if err := q.store.fail(moves); err != nil {
			return err
		}
	}
	q.store.added += len(moves)
	return q.RetryQueue.Add(ctx, moves...)
}

func TestExhaustedKeyIsParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		mended := false
		p.handle(func(_ context.Context, j job) error {
			if j == (job{"a", 1}) && !mended {
				return waybill.Unrecoverable(errDeclined)
			}
			return nil
		})
		p.send(job{"a", 1}, job{"a", 2}, job{"b", 1})
		stop := p.start(p.queue)
		time.Sleep(time.Hour)
		p.send(job{"a", 3})
		time.Sleep(time.Hour)
		p.wantDone("b1")
		p.wantAttempts()
		mended = true
		if got := p.db.ReleaseRetries("jobs", "a"); got != 1 {
			t.Errorf("%d messages released, want the parked one", got)
		}
		time.Sleep(time.Second)
		noError(t, stop())
		p.wantDone("b1 a1 a2 a3")
	})
}

// The way out for a parked message that no build can handle.
func TestParkedHeadIsSkippedByAWorkerThatSkips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		p.handle(func(_ context.Context, j job) error {
			if j.N == 1 {
				return waybill.Unrecoverable(errDeclined)
			}
			return nil
		})
		p.send(job{"a", 1}, job{"a", 2}, job{"a", 3})
		stop := p.start(p.queue)
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantDone("")
		p.cfg.OnExhausted = worker.Skip
		stop = p.start(p.queue)
		time.Sleep(time.Minute)
		p.wantDone("") // it was parked, and is until a release
		if got := p.db.ReleaseRetries("jobs", "a"); got != 1 {
			t.Errorf("%d messages released, want the parked one", got)
		}
		time.Sleep(time.Second)
		noError(t, stop())
		p.wantDone("a2 a3")
		p.wantAttempts(2)
	})
}

func TestSkippedMessageLetsItsKeyGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		p.cfg.OnExhausted, p.cfg.MaxRetries = worker.Skip, 1
		p.handle(func(_ context.Context, j job) error {
			if j.N%2 == 1 {
				return errDeclined
			}
			return nil
		})
		p.send(job{"a", 0}, job{"a", 1}, job{"a", 2}, job{"a", 3}, job{"a", 4})
		stop := p.start(p.queue)
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantDone("a0 a2 a4")
		p.wantAttempts(2, 2)
	})
}

// A database that is away for 20 minutes costs no message an attempt.
func TestUnavailableNeverCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		start := time.Now()
		away := 20 * time.Minute
		p.handle(func(context.Context, job) error {
			if time.Since(start) < away {
				return fmt.Errorf("insert: %w", waybill.ErrUnavailable)
			}
			return nil
		})
		for n := range 100 {
			p.send(job{fmt.Sprint("k", n%10, "-"), n})
		}
		stop := p.start(p.queue)
		time.Sleep(away + 6*time.Second)
		p.mu.Lock()
		if len(p.done) != 100 {
			t.Errorf("%d messages handled 6 s after the outage, want 100", len(p.done))
		}
		p.mu.Unlock()
		noError(t, stop())
		if got := len(p.of(waybill.Retrying)); got != 0 {
			t.Errorf("%d failures counted, want none", got)
		}
		if got := len(p.of(waybill.Handled)); got > 100+20*60/5+4*40+20 { // of 40 in flight each is tried 4 times first
			t.Errorf("%d attempts during the outage, want a pause of the worker between them", got)
		}
	})
}

// A commit whose answer is lost is an outage of the database, not a failure of the message.
func TestLostCommitIsNoFailure(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want int
	}{
		{"its connection ended", errors.New("terminating connection"), 0},
		{"the handler had no more time", context.DeadlineExceeded, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, attempts := stored(t), 0
				p.handle(func(context.Context, job) error {
					if attempts++; attempts == 1 {
						return &waybill.CommitUnknownError{Err: tt.err}
					}
					return nil
				})
				p.send(job{"k", 1})
				stop := p.start(p.queue)
				time.Sleep(10 * time.Second)
				noError(t, stop())
				if got := len(p.of(waybill.Retrying)); got != tt.want || attempts != 2 {
					t.Errorf("%d failures counted in %d attempts, want %d in 2", got, attempts, tt.want)
				}
			})
		})
	}
}

// A message that ends its process is a dead letter after five times; one that was in
// flight beside it is handled.
func TestMessageThatEndsItsProcessIsADeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		p.handle(func(context.Context, job) error { return nil })
		p.send(job{"", 1}, job{"", 2})
		// die takes what is there, and ends without a word.
		die := func(q waybill.Receiver) {
			t.Helper()
			_, err := q.Receive(t.Context(), 10)
			noError(t, err)
			time.Sleep(q.LeaseTime() + time.Second)
		}
		die(p.db.Queue("jobs"))
		q, err := p.db.RetryQueue("jobs")
		noError(t, err)
		ds, err := p.queue.Receive(t.Context(), 10)
		noError(t, err)
		for _, d := range ds { // as a worker does with what is redelivered
			if !d.Redelivered {
				t.Fatal("a message of a process that ended is not redelivered")
			}
			noError(t, q.Add(t.Context(), worker.Move{Delivery: d}))
		}
		noError(t, p.queue.Ack(t.Context(), ds...))
		die(q) // before a handler began
		for range 5 {
			ds, err := q.Receive(t.Context(), 10)
			noError(t, err)
			for _, d := range ds {
				if string(d.Record.Body) == `{"K":"","N":1}` {
					_, err := q.Begin(t.Context(), d)
					noError(t, err)
				}
			}
			time.Sleep(q.LeaseTime() + time.Second)
		}
		stop := p.start(p.queue)
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantDone("2")
		p.wantAttempts(1)
		if got := p.db.DeadLetters("failed"); len(got) == 1 && !strings.Contains(got[0].Attempts[0].Error, "its process ended 5 times") {
			t.Errorf("error %q, want the number of crashes", got[0].Attempts[0].Error)
		}
	})
}

type observer func(waybill.Event)

func (o observer) Observe(_ context.Context, e waybill.Event) { o(e) }

// Messages of a retry queue that were in flight in a process that ended run one at a time,
// so that a crash counts against one alone; orderly ends count nothing.
func TestOrderlyStopsCountNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		p.cfg.Drain = time.Second
		running, most := 0, 0
		p.handle(func(ctx context.Context, j job) error {
			p.mu.Lock()
			running++
			most = max(most, running)
			p.mu.Unlock()
			<-ctx.Done()
			p.mu.Lock()
			running--
			p.mu.Unlock()
			return ctx.Err()
		})
		q, err := p.db.RetryQueue("jobs")
		noError(t, err)
		for n := range 5 {
			rec := &waybill.Record{ID: waybill.MessageID{byte(n + 1)}, Name: "job", Body: fmt.Appendf(nil, `{"N":%d}`, n)}
			noError(t, q.Add(t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: rec}}))
		}
		_, err = q.Receive(t.Context(), 10) // by a process that ends
		noError(t, err)
		time.Sleep(q.LeaseTime() + time.Second)
		for range 50 {
			stop := p.start(p.db.Queue("jobs"))
			time.Sleep(2 * time.Second)
			noError(t, stop())
			if most > 1 {
				t.Fatalf("%d ran at once that were in flight when their process ended, want one", most)
			}
			_, err = q.Receive(t.Context(), 100)
			noError(t, err)
			time.Sleep(q.LeaseTime() + time.Second)
		}
		p.wantAttempts()
		if got := p.db.Waiting("jobs"); got != 5 {
			t.Errorf("%d messages in the retry queue, want 5", got)
		}
		if got := len(p.of(waybill.Retrying)); got != 0 {
			t.Errorf("%d failures counted, want none", got)
		}
	})
}

// A message that was in flight in a process that ended begins when the last one of its kind is
// settled: until then the end of the process would count against both.
func TestSuspectBeginsWhenTheLastIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		slow := &slowStore{Store: p.db}
		p.cfg.Store = slow
		begun := 0
		p.handle(func(_ context.Context, j job) error {
			if settled := int(slow.settled.Load()); settled != begun {
				t.Errorf("message %d begins when %d of %d are settled", j.N, settled, begun)
			}
			if begun++; j.N%2 == 1 {
				return waybill.Unrecoverable(errDeclined)
			}
			return nil
		})
		q, err := p.db.RetryQueue("jobs")
		noError(t, err)
		for n := range 6 {
			rec := &waybill.Record{ID: waybill.MessageID{byte(n + 1)}, Name: "job", Body: fmt.Appendf(nil, `{"N":%d}`, n)}
			noError(t, q.Add(t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: rec}}))
		}
		_, err = q.Receive(t.Context(), 10) // by a process that ends
		noError(t, err)
		time.Sleep(q.LeaseTime() + time.Second)
		stop := p.start(p.db.Queue("jobs"))
		time.Sleep(time.Minute)
		noError(t, stop())
		if begun != 6 {
			t.Errorf("%d messages handled, want 6", begun)
		}
	})
}

// A message of which the retry queue says, as it begins, that another process has it now, has not
// failed here.
func TestSuspectThatAnotherProcessHasIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		p.cfg.Store = &takenStore{Store: p.db}
		p.handle(func(context.Context, job) error { return nil })
		q, err := p.db.RetryQueue("jobs")
		noError(t, err)
		rec := &waybill.Record{ID: waybill.MessageID{1}, Name: "job", Body: []byte(`{"N":1}`)}
		noError(t, q.Add(t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: rec}}))
		_, err = q.Receive(t.Context(), 10) // by a process that ends
		noError(t, err)
		time.Sleep(q.LeaseTime() + time.Second)
		stop := p.start(p.db.Queue("jobs"))
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantDone("1")
		if lost, failed := len(p.of(waybill.LeaseLost)), len(p.of(waybill.Retrying)); lost != 1 || failed != 0 {
			t.Errorf("%d leases lost and %d failures, want 1 and 0", lost, failed)
		}
	})
}

// A takenStore says of the first message that begins that another process has it.
type takenStore struct {
	worker.Store
	said atomic.Bool
}

func (s *takenStore) RetryQueue(transport string) (worker.RetryQueue, error) {
	q, err := s.Store.RetryQueue(transport)
	return takenRetryQueue{q, s}, err
}

type takenRetryQueue struct {
	worker.RetryQueue
	of *takenStore
}

func (q takenRetryQueue) Begin(ctx context.Context, d *waybill.Delivery) (int, error) {
	if !q.of.said.Swap(true) {
		return 0, fmt.Errorf("begin: %w", waybill.ErrLeaseLost)
	}
	return q.RetryQueue.Begin(ctx, d)
}

// A slowStore takes a second to settle deliveries of a retry queue.
type slowStore struct {
	worker.Store
	settled atomic.Int32
}

func (s *slowStore) RetryQueue(transport string) (worker.RetryQueue, error) {
	q, err := s.Store.RetryQueue(transport)
	return slowRetryQueue{q, s}, err
}

type slowRetryQueue struct {
	worker.RetryQueue
	of *slowStore
}

func (q slowRetryQueue) Ack(ctx context.Context, ds ...*waybill.Delivery) error {
	time.Sleep(time.Second)
	defer q.of.settled.Add(int32(len(ds)))
	return q.RetryQueue.Ack(ctx, ds...)
}

func (q slowRetryQueue) Move(ctx context.Context, moves ...worker.Move) error {
	time.Sleep(time.Second)
	defer q.of.settled.Add(int32(len(moves)))
	return q.RetryQueue.Move(ctx, moves...)
}

func TestStoreThatIsAwayLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		start := time.Now()
		p.cfg.Store = &watchedStore{Store: p.db, fail: func([]worker.Move) error {
			if time.Since(start) < time.Minute {
				return waybill.ErrUnavailable
			}
			return nil
		}}
		failed := map[job]bool{}
		p.handle(func(_ context.Context, j job) error {
			if !failed[j] {
				failed[j] = true
				return errDeclined
			}
			return nil
		})
		p.send(job{"a", 1}, job{"a", 2}, job{"a", 3})
		stop := p.start(p.queue)
		time.Sleep(30 * time.Second)
		noError(t, stop()) // does not wait for the store
		stop = p.start(p.db.Queue("jobs"))
		time.Sleep(5 * time.Minute)
		noError(t, stop())
		p.wantDone("a1 a2 a3")
	})
}

// A worker that stops while the store is away stores no later message either: the first of its
// key is still at the transport.
func TestStoreThatComesBackTooLateTakesNoLaterMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		p.cfg.Concurrency, p.cfg.Prefetch = 1, 400
		const n = 250 // are stored in three transactions
		tries := 0
		store := &watchedStore{Store: p.db, fail: func(moves []worker.Move) error {
			if moves[0].Attempt == nil { // not the first of the key
				return nil
			}
			tries++
			return waybill.ErrUnavailable
		}}
		p.cfg.Store = store
		p.handleAfterAFailure()
		var want []string
		for i := range n {
			p.send(job{"a", i})
			want = append(want, job{"a", i}.String())
		}
		stop := p.start(p.queue)
		time.Sleep(10 * time.Second)
		noError(t, stop())
		if tries < 3 || store.added > 0 {
			t.Errorf("after %d tries to store the first message of a key %d later ones were stored, want none", tries, store.added)
		}
		p.cfg.Store = p.db
		stop = p.start(p.db.Queue("jobs"))
		time.Sleep(time.Hour)
		noError(t, stop())
		p.wantDone(strings.Join(want, " "))
	})
}

func TestMessageThatTheStoreRefusesStaysAtItsTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		p.cfg.Store = &watchedStore{Store: p.db, fail: func([]worker.Move) error { return errors.New("too large") }}
		p.handle(func(context.Context, job) error { return errDeclined })
		p.send(job{"a", 1})
		stop := p.start(p.queue)
		time.Sleep(time.Hour)
		noError(t, stop())
		p.wantBacklog(1)
	})
}

// Without renewals a lease ends by the worker's own clock.
func TestHandlerIsStoppedWhenItsLeaseCannotBeRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Concurrency = 1
		start := time.Now()
		var begun []string
		p.handle(func(ctx context.Context, j job) error {
			p.mu.Lock()
			begun = append(begun, j.String())
			p.mu.Unlock()
			<-ctx.Done()
			if took := time.Since(start); took > p.queue.LeaseTime()+time.Second {
				t.Errorf("the handler was stopped after %v, want within the lease of %v", took, p.queue.LeaseTime())
			}
			if !errors.Is(context.Cause(ctx), waybill.ErrLeaseLost) {
				t.Errorf("cause %v, want the lost lease", context.Cause(ctx))
			}
			return ctx.Err()
		})
		p.send(job{"a", 1}, job{"a", 2}, job{"b", 1})
		stop := p.start(&deaf{Queue: p.queue})
		defer func() { noError(t, stop()) }()
		time.Sleep(p.queue.LeaseTime() + 2*time.Second)
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(begun) != 1 {
			t.Errorf("begun %v, want the first alone: the others' leases had ended", begun)
		}
	})
}

// deaf is a queue whose database does not answer renewals, and takes messages once.
type deaf struct {
	*memory.Queue
	taken atomic.Bool
}

func (d *deaf) Receive(ctx context.Context, n int) ([]*waybill.Delivery, error) {
	if d.taken.Swap(true) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return d.Queue.Receive(ctx, n)
}

func (d *deaf) Renew(ctx context.Context, _ ...*waybill.Delivery) ([]*waybill.Delivery, error) {
	<-ctx.Done()
	return nil, fmt.Errorf("%w: %w", waybill.ErrUnavailable, ctx.Err())
}

// When the connection of a delivery has ended, its handlers stop and later ones do not begin.
func TestHandlerIsStoppedWhenItsConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Concurrency = 1
		var begun []string
		p.handle(func(ctx context.Context, j job) error {
			p.mu.Lock()
			begun = append(begun, j.String())
			p.mu.Unlock()
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Minute):
				return nil
			}
		})
		p.send(job{"a", 1}, job{"b", 1})
		ended := make(chan struct{})
		released := 0
		l := &give{link: link{Queue: p.queue}}
		l.release = func() error { released++; return nil }
		first := true
		l.receive = func(ctx context.Context, n int) ([]*waybill.Delivery, error) {
			if !first {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			first = false
			ds, err := p.queue.Receive(ctx, n)
			for _, d := range ds {
				d.Lost = ended
			}
			return ds, err
		}
		stop := p.start(l)
		time.Sleep(time.Second)
		close(ended)
		time.Sleep(time.Second)
		noError(t, stop())
		p.wantDone("")
		if released == 0 || len(p.failuresLeft()) != 2 {
			t.Error("the lost deliveries were not settled: their receiver counts them in flight for ever")
		}
		if len(begun) != 1 {
			t.Errorf("begun %v, want the first alone", begun)
		}
		if got := len(p.of(waybill.LeaseLost)); got != 2 {
			t.Errorf("%d events of a lost lease, want 2", got)
		}
	})
}

func TestHandlerThatEndsItsGoroutineFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		p.handle(func(_ context.Context, j job) error {
			if j.N == 1 {
				runtime.Goexit()
			}
			return nil
		})
		p.send(job{"", 1}, job{"", 2})
		stop := p.start(p.queue)
		time.Sleep(time.Second)
		noError(t, stop())
		p.wantDone("2")
		p.wantAttempts(1)
	})
}

func TestObserverThatPanicsConcernsNoMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := stored(t)
		p.cfg.Observer = observer(func(waybill.Event) { panic("nil map") })
		p.handle(func(context.Context, job) error { return nil })
		p.send(job{"", 1})
		stop := p.start(p.queue)
		time.Sleep(time.Second)
		noError(t, stop())
		p.wantDone("1")
		p.wantBacklog(0)
	})
}
