package e2e

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/worker"
)

// reported starts a worker whose process reports to the database.
func (h handling) reported(tb testing.TB, name string) (stop func()) {
	tb.Helper()
	registry, ok := h.database.(worker.Registry)
	if !ok {
		tb.Fatal("the database keeps no reports")
	}
	process, err := worker.NewProcess(registry, name, nil)
	if err != nil {
		tb.Fatal(err)
	}
	h.cfg.Process = process
	return h.start(tb)
}

// pausedWorkers counts the processes that report to be paused, with nothing in flight.
func (s *stack) pausedWorkers(db admin.Workers) (n int) {
	s.Helper()
	found, err := db.Workers(s.Context())
	s.must(err)
	for _, w := range found {
		if w.State == worker.StatePaused && w.Busy == 0 {
			n++
		}
	}
	return n
}

// Workers of a queue with a single active consumer are paused while some keys wait in the
// retry queue. Within one report they hold no message, and one that starts then has none
// either; no attempt is counted. After the resume all messages are handled in order, once.
func TestPausedTransportIsResumedInOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		s.orderedQueue()
		s.patientRelay()
		var attempts, declined atomic.Int64
		var mended atomic.Bool
		h := handling{s.open(s.database), s.broker, worker.Config{MaxRetries: 1000, Concurrency: 4}, func(m counted) error {
			attempts.Add(1)
			if !mended.Load() {
				time.Sleep(60 * time.Millisecond)
			}
			if isBad(m) && !mended.Load() {
				declined.Add(1)
				return errDown
			}
			return nil
		}}
		db, ok := h.database.(admin.Workers)
		if !ok {
			t.Fatal("the database keeps no pauses")
		}
		stopFirst := h.reported(t, "first")
		h.reported(t, "second")
		keys := append(keyNames("bad", 3), keyNames("good", 40)...)
		for range 10 {
			s.dispatch(keys, 1)
		}
		s.eventually(patience, "keys wait for a retry, and others are being handled", func() bool {
			return s.count("SELECT count(*) FROM waybill_retry") > 3 && s.count("SELECT count(*) FROM effects") > 20
		})
		_, err := db.PauseTransport(t.Context(), handled, "the warehouse is down")
		s.must(err)
		took := s.eventually(7*time.Second, "both workers are paused", func() bool { return s.pausedWorkers(db) == 2 })
		before, effects := attempts.Load(), s.count("SELECT count(*) FROM effects")
		t.Logf("paused after %v, with %d effects of %d messages", took.Round(time.Millisecond), effects, s.count("SELECT count(*) FROM sent"))
		s.eventually(2*time.Second, "the broker has messages, and no consumer", func() bool {
			q, err := s.ch.QueueDeclarePassive(handled, true, false, false, false, nil)
			s.must(err)
			return q.Consumers == 0 && q.Messages > 50
		})
		for range 5 {
			s.dispatch(keys, 1)
		}
		h.reported(t, "third")
		stopFirst()
		h.reported(t, "fourth")
		time.Sleep(6 * time.Second) // a report, and retries that are due
		if got := attempts.Load(); got != before {
			t.Errorf("%d attempts began in the pause", got-before)
		}
		if got := s.count("SELECT coalesce(sum(failures), 0) FROM waybill_retry"); got != int(declined.Load()) {
			t.Errorf("%d attempts are counted, %d have failed", got, declined.Load())
		}
		mended.Store(true)
		_, err = db.ResumeTransport(t.Context(), handled)
		s.must(err)
		s.oneEffect()
		s.inOrder()
		s.noFailures()
		if sent := s.count("SELECT count(*) FROM sent"); attempts.Load() != int64(sent)+declined.Load() {
			t.Errorf("%d attempts at %d messages, of which %d failed", attempts.Load(), sent, declined.Load())
		}
	})
}
