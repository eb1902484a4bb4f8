package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

// Whatever step a worker is killed at, of failing, retrying, parking, moving to the dead
// letters, replaying and closing: its successors handle every message, in the order of its
// key, and leave nothing behind.
func TestKillAtAnyStepLosesNothing(t *testing.T) {
	steps := 0
	synctest.Test(t, func(t *testing.T) { steps = len(surviveKills(t)) })
	if steps < 40 {
		t.Fatalf("%d steps: this proves nothing", steps)
	}
	for at := 2; at < 2*steps+2; at++ { // an even number kills before a step, an odd one after it
		for _, kills := range [][]int{{at}, {at, at + 5}, {at, at + 16, at + 33}} {
			synctest.Test(t, func(t *testing.T) { surviveKills(t, kills...) })
		}
	}
}

// surviveKills kills the workers of a scenario at these steps, and returns all steps.
func surviveKills(t *testing.T, kills ...int) []string {
	t.Helper()
	s := &survival{fixture: stored(t), kills: kills, seen: map[job]bool{}, attempts: map[job]int{}}
	s.send(job{"a", 1}, job{"a", 2}, job{"a", 3}, job{"b", 1}, job{"b", 2}, job{"c", 1}, job{"c", 2}, job{"c", 3}, job{"c", 4}, job{"", 1}, job{"", 2}, job{"", 3})
	s.live(7 * time.Second)
	s.send(job{"a", 4}, job{"b", 3}, job{"c", 5})
	s.live(3 * time.Minute)
	if got := len(s.db.DeadLetters("failed")); got != 2 {
		t.Errorf("%s: %d dead letters, want 2", s, got)
	}
	s.mended = true
	s.db.ReleaseRetries("jobs", "b")
	s.db.Replay("failed")
	s.live(3 * time.Minute)
	for key, want := range map[string]string{"a": "a1 a2 a3 a4", "b": "b1 b2 b3", "c": "c1 c2 c3 c4 c5"} {
		others := func(name string) bool { return !strings.HasPrefix(name, key) }
		if got := strings.Join(slices.DeleteFunc(slices.Clone(s.done), others), " "); got != want {
			t.Errorf("%s: handled %q, want %q", s, got, want)
		}
	}
	if len(s.done) != 15 {
		t.Errorf("%s: handled %d messages, want 15: %v", s, len(s.done), s.done)
	}
	if a, b, c := s.queue.Len(), s.db.Waiting("jobs"), len(s.db.DeadLetters("failed")); a+b+c > 0 {
		t.Errorf("%s: %d messages left in the queue, %d in the retry queue, %d dead letters", s, a, b, c)
	}
	return s.steps
}

// A survival is a scenario with the calls of its workers to their servers.
type survival struct {
	*fixture
	kills  []int
	killed []string
	steps  []string
	mended bool

	seen     map[job]bool // the inbox
	attempts map[job]int
}

func (s *survival) String() string { return "killed " + strings.Join(s.killed, ", ") }

// live runs a worker for a while. A killed one is replaced at once.
func (s *survival) live(d time.Duration) {
	s.t.Helper()
	for end := time.After(d); end != nil; {
		l := &life{survival: s, over: make(chan struct{})}
		s.bus = waybill.NewBus("main")
		s.bus.AddSender("jobs", s.queue)
		s.bus.Route("*", "jobs")
		waybill.Handle(s.bus, "do", l.handle)
		s.cfg.Store = l
		stop := s.start(&mortal{s.db.Queue("jobs"), l})
		select {
		case <-l.over:
		case <-end:
			end = nil
		}
		if err := stop(); err != nil {
			s.t.Errorf("%s: Run = %v", s, err)
		}
	}
}

// A life is that of a worker process. After its end no call has an effect.
type life struct {
	*survival
	over chan struct{}
}

var errKilled = fmt.Errorf("%w: the process was killed", waybill.ErrUnavailable)

func (l *life) ended() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

// step makes a call, unless the process is killed before it.
func (l *life) step(name string, call func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended() {
		return errKilled
	}
	l.steps = append(l.steps, name)
	n := 2 * len(l.steps)
	kill := func(n int, when string) bool {
		if !slices.Contains(l.kills, n) {
			return false
		}
		l.killed = append(l.killed, when+" "+name)
		close(l.over)
		return true
	}
	if kill(n, "before") {
		return errKilled
	}
	if err := call(); !kill(n+1, "after") {
		return err
	}
	return errKilled
}

// handle fails twice with a2 and once with 2. Until that is mended it fails with 1
// unrecoverably, and with b1 and 3 at the second attempt.
func (l *life) handle(_ context.Context, j job) error {
	if j.K == "c" {
		time.Sleep(3 * time.Second)
	}
	return l.step("commit", func() error {
		l.attempts[j]++
		switch {
		case l.seen[j]:
			return nil
		case j == job{"a", 2} && l.attempts[j] <= 2, j == job{"", 2} && l.attempts[j] <= 1:
			return errDeclined
		case !l.mended && l.attempts[j] == 1 && (j == job{"b", 1} || j == job{"", 3}):
			return errDeclined
		case !l.mended && (j == job{"b", 1} || j == job{"", 1} || j == job{"", 3}):
			return waybill.Unrecoverable(errDeclined)
		}
		l.seen[j] = true
		l.done = append(l.done, j.String())
		return nil
	})
}

// RetryQueue implements worker.Store.
func (l *life) RetryQueue(transport string) (worker.RetryQueue, error) {
	q, err := l.db.RetryQueue(transport)
	return &mortalRetries{mortal{q, l}, q}, err
}

// mortal is a receiver of a process that can be killed.
type mortal struct {
	waybill.Receiver
	life *life
}

func (m *mortal) Receive(ctx context.Context, n int) (ds []*waybill.Delivery, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var ended sync.WaitGroup
	ended.Go(func() {
		select {
		case <-m.life.over:
			cancel()
		case <-ctx.Done():
		}
	})
	defer ended.Wait()
	defer cancel()
	if ds, err = m.Receiver.Receive(ctx, n); len(ds) > 0 {
		err = m.life.step("receive", func() error { return nil })
	}
	if m.life.ended() {
		return nil, errKilled
	}
	return ds, err
}

func (m *mortal) Ack(ctx context.Context, ds ...*waybill.Delivery) error {
	return m.life.step("ack", func() error { return m.Receiver.Ack(ctx, ds...) })
}

func (m *mortal) Retry(ctx context.Context, d *waybill.Delivery, delay time.Duration) error {
	return m.life.step("retry", func() error { return m.Receiver.Retry(ctx, d, delay) })
}

func (m *mortal) Release(ctx context.Context, ds ...*waybill.Delivery) error {
	return m.life.step("release", func() error { return m.Receiver.Release(ctx, ds...) })
}

func (m *mortal) Renew(ctx context.Context, ds ...*waybill.Delivery) ([]*waybill.Delivery, error) {
	if m.life.ended() {
		return nil, errKilled
	}
	return m.Receiver.Renew(ctx, ds...)
}

// mortalRetries is the retry queue of a process that can be killed.
type mortalRetries struct {
	mortal
	retries worker.RetryQueue
}

func (m *mortalRetries) Contains(ctx context.Context, ds ...*waybill.Delivery) (contained []bool, err error) {
	err = m.life.step("contains", func() (err error) { contained, err = m.retries.Contains(ctx, ds...); return err })
	return contained, err
}

func (m *mortalRetries) Add(ctx context.Context, moves ...worker.Move) error {
	return m.life.step("add", func() error { return m.retries.Add(ctx, moves...) })
}

func (m *mortalRetries) Move(ctx context.Context, moves ...worker.Move) error {
	return m.life.step("move", func() error { return m.retries.Move(ctx, moves...) })
}

func (m *mortalRetries) Begin(ctx context.Context, d *waybill.Delivery) (crashes int, err error) {
	err = m.life.step("begin", func() (err error) { crashes, err = m.retries.Begin(ctx, d); return err })
	return crashes, err
}
