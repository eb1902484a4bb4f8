package worker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// An expiring is an inbox with expired entries.
type expiring struct {
	mu     sync.Mutex
	left   int
	calls  []time.Time
	conns  int
	batch  time.Duration // of a transaction
	err    error         // of the next call
	panics bool          // of the next call
}

func (e *expiring) PruneExpired(ctx context.Context, max int) (int, error) {
	e.mu.Lock()
	e.calls = append(e.calls, time.Now())
	err, panics, batch := e.err, e.panics, e.batch
	e.err, e.panics = nil, false
	e.mu.Unlock()
	if panics {
		panic("boom")
	}
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(batch):
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	n := min(max, e.left)
	e.left -= n
	return n, nil
}

func (e *expiring) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.calls)
}

func (e *expiring) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

func (e *expiring) MaxConns() int { return e.conns }

func (p *fixture) logTo() *bytes.Buffer {
	var text bytes.Buffer
	p.cfg.Log = slog.New(slog.NewTextHandler(&text, nil))
	return &text
}

func TestWorkerPrunesTheInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.handle(func(context.Context, job) error { return nil })
		box := &expiring{left: 1200}
		p.cfg.Inbox = box
		text := p.logTo()
		start := time.Now()
		stop := p.start(p.queue)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := box.count(); box.left != 0 || got < 3 || got > 4 {
			t.Errorf("after a minute %d of 1200 entries are left by %d batches, want none by 3, or 4 with the next turn", box.left, got)
		}
		box.set(func() { box.err = errors.New("no such table") })
		time.Sleep(90 * time.Second)
		synctest.Wait()
		if !strings.Contains(text.String(), "inbox not pruned") || !strings.Contains(text.String(), "no such table") {
			t.Errorf("log:\n%s\nwant the error", text)
		}
		box.set(func() { box.panics = true })
		time.Sleep(90 * time.Second)
		synctest.Wait()
		if !strings.Contains(text.String(), "panic: boom") {
			t.Errorf("log:\n%s\nwant the panic", text)
		}
		time.Sleep(time.Until(start.Add(time.Hour)))
		if got := box.count(); got < 50 || got > 75 {
			t.Errorf("%d batches in an hour, want about one a minute", got)
		}
		noError(t, stop())
		gaps := map[time.Duration]bool{}
		for i := 4; i < len(box.calls); i++ {
			gaps[box.calls[i].Sub(box.calls[i-1])] = true
		}
		if len(gaps) < 10 {
			t.Errorf("the times between batches are %v, want them to differ", gaps)
		}
	})
}

// Messages flow while a batch hangs, batches leave the database half of its time, those of
// one minute end within it, and a stop does not wait for one.
func TestPruningHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		box := &expiring{left: 1 << 30, batch: time.Second}
		p.cfg.Inbox = box
		text := p.logTo()
		p.handle(func(context.Context, job) error { return nil })
		stop := p.start(p.queue)
		for box.count() == 0 {
			time.Sleep(time.Second)
		}
		p.send(job{"a", 1})
		synctest.Wait()
		p.wantDone("a1")
		time.Sleep(25 * time.Second)
		synctest.Wait()
		if got := box.count(); got != 10 {
			t.Errorf("%d batches of a second each in 20 s, want 10", got)
		}
		if strings.Contains(text.String(), "not pruned") {
			t.Errorf("log:\n%s\nwant no error of a turn that was merely long", text)
		}
		box.set(func() { box.batch = time.Hour })
		hang := func() {
			for n := box.count(); box.count() == n; {
				time.Sleep(time.Second)
			}
		}
		hang()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !strings.Contains(text.String(), "inbox not pruned") {
			t.Errorf("log:\n%s\nwant the end of a batch that hangs", text)
		}
		hang()
		began := time.Now()
		noError(t, stop())
		if took := time.Since(began); took != 0 {
			t.Errorf("Run took %v to stop, want no wait for the batch", took)
		}
	})
}

func TestFewConnectionsAreWarnedOf(t *testing.T) {
	for conns, want := range map[int]bool{1: false, 4: true, 16: true, 17: false} {
		synctest.Test(t, func(t *testing.T) {
			p := newFixture(t)
			p.handle(func(context.Context, job) error { return nil })
			p.cfg.Concurrency, p.cfg.Inbox = 16, &expiring{conns: conns}
			text := p.logTo()
			stop := p.start(p.queue)
			synctest.Wait()
			noError(t, stop())
			if got := strings.Contains(text.String(), "fewer connections than handlers"); got != want {
				t.Errorf("%d connections for 16 handlers: warning %t, want %t\n%s", conns, got, want, text)
			}
		})
	}
}
