package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

// wantLog compares the lines since the last call, each a regular expression.
func wantLog(t *testing.T, log *bytes.Buffer, want ...string) {
	t.Helper()
	got := strings.FieldsFunc(log.String(), func(r rune) bool { return r == '\n' })
	log.Reset()
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i := range want {
		if !regexp.MustCompile(want[i]).MatchString(got[i]) {
			t.Errorf("line %s\nwant %s", got[i], want[i])
		}
	}
}

// An outage of a database with the transport, the retry queue and the inbox is a line when
// it begins, each five minutes, and when it ends, though no message arrives; a second one likewise.
func TestWorkersOutageIsALineEachFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		log := p.logTo()
		var away atomic.Bool
		p.cfg.Store = &awayStore{Store: p.db, away: &away}
		box := &expiring{}
		p.cfg.Inbox = box
		flaky := &link{Queue: p.queue}
		flaky.receive = func(ctx context.Context, max int) ([]*waybill.Delivery, error) {
			return receiveUnless(ctx, &away, p.queue, max)
		}
		p.handle(func(context.Context, job) error { return nil })
		stop := p.start(flaky)
		time.Sleep(time.Minute)
		synctest.Wait()
		log.Reset()
		for range 2 {
			away.Store(true)
			box.set(func() { box.err = waybill.ErrUnavailable })
			time.Sleep(10 * time.Minute)
			away.Store(false)
			box.set(func() { box.err = nil })
			time.Sleep(30 * time.Second)
			synctest.Wait()
			wantLog(t, log,
				`level=WARN msg="cannot receive, will try again" what=queue transport=jobs .*err=`,
				`level=WARN msg="cannot receive, will try again" what=queue transport=jobs .*err=`,
				`level=INFO msg="outage over" what=queue transport=jobs failures=\d{3} lasted=10m`)
		}
		p.send(job{"a", 1})
		time.Sleep(time.Second)
		noError(t, stop())
		p.wantDone("a1")
		wantLog(t, log)
	})
}

// A database that handlers cannot reach is a line each five minutes, and an outage of the store is
// another one, also when the message that waits for it fails otherwise.
func TestOutageOfHandlersIsALineEachFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		var text bytes.Buffer
		p.cfg.Log = slog.New(slog.NewTextHandler(&text, nil))
		start := time.Now()
		p.cfg.Retry = waybill.Backoff{Jitter: -1}
		refused := false
		p.cfg.Store = &watchedStore{Store: p.db, fail: func([]worker.Move) error {
			if time.Since(start) < 20*time.Minute {
				return waybill.ErrUnavailable
			}
			return nil
		}}
		p.handle(func(context.Context, job) error {
			switch {
			case time.Since(start) < 10*time.Minute:
				return fmt.Errorf("insert: %w", waybill.ErrUnavailable)
			case !refused:
				refused = true
				return errDeclined
			}
			return nil
		})
		p.send(job{"a", 1})
		stop := p.start(p.queue)
		time.Sleep(time.Hour)
		noError(t, stop())
		p.wantDone("a1")
		wantLog(t, &text,
			`level=WARN msg="unavailable while handling, the worker pauses" what=handlers transport=jobs message=job id=\S+ attempt=1 .*retry_in=50ms`,
			`level=WARN msg="unavailable while handling, the worker pauses" what=handlers transport=jobs message=job id=\S+ attempt=1 .*retry_in=5s`,
			`level=INFO msg="outage over" what=handlers transport=jobs failures=\d{3} lasted=10m`,
			`level=WARN msg="handling failed, will be retried"`,
			`level=WARN msg="failed messages not stored, will try again" what=queue transport=jobs messages=1 `,
			`level=WARN msg="failed messages not stored, will try again" what=queue transport=jobs messages=1 `,
			`level=INFO msg="outage over" what=queue transport=jobs failures=\d{3} lasted=`)
	})
}

// An awayStore is a store whose retry queue cannot be read for a time.
type awayStore struct {
	worker.Store
	away *atomic.Bool
}

func (s *awayStore) RetryQueue(transport string) (worker.RetryQueue, error) {
	q, err := s.Store.RetryQueue(transport)
	return awayQueue{q, s.away}, err
}

type awayQueue struct {
	worker.RetryQueue
	away *atomic.Bool
}

func (q awayQueue) Receive(ctx context.Context, max int) ([]*waybill.Delivery, error) {
	return receiveUnless(ctx, q.away, q.RetryQueue, max)
}

// receiveUnless receives, and notices within a second that the database is away.
func receiveUnless(ctx context.Context, away *atomic.Bool, from waybill.Receiver, max int) ([]*waybill.Delivery, error) {
	for !away.Load() {
		waiting, cancel := context.WithTimeout(ctx, time.Second)
		ds, err := from.Receive(waiting, max)
		cancel()
		if len(ds) > 0 || ctx.Err() != nil {
			return ds, err
		}
	}
	return nil, fmt.Errorf("dial: %w", waybill.ErrUnavailable)
}

// A failure of another kind says that an outage is over.
func TestFailuresAfterAnOutageRunTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Concurrency = 4
		begun, at, most := 0, 0, 0
		change := func(by int) (first bool) {
			p.mu.Lock()
			defer p.mu.Unlock()
			begun++
			at += by
			most = max(most, at)
			return begun == 1
		}
		p.handle(func(context.Context, job) error {
			defer change(-1)
			if change(1) {
				return waybill.ErrUnavailable
			}
			time.Sleep(time.Second)
			return errDeclined
		})
		for i := range 8 {
			p.send(job{fmt.Sprint("k", i), 1})
		}
		stop := p.start(p.queue)
		time.Sleep(10 * time.Second)
		noError(t, stop())
		if most != 4 {
			t.Errorf("%d handlers run at once, want 4", most)
		}
	})
}

// An attempt that meets an outage handles no message, and none counts for the limit.
func TestLimitCountsNoAttemptsInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Limit = 3
		back := time.Now().Add(time.Minute)
		p.handle(func(context.Context, job) error {
			if time.Now().Before(back) {
				return waybill.ErrUnavailable
			}
			return nil
		})
		for n := range 4 {
			p.send(job{"", n})
		}
		noError(t, p.run(p.queue))
		if len(p.done) != 3 {
			t.Errorf("%d messages handled, want the limit of 3", len(p.done))
		}
	})
}
