package e2e

import (
	"bytes"
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/worker"
)

const handled = "handled" // the queue of the worker

// work runs a worker whose handler writes one row for each message.
func (s *stack) work() {
	s.Helper()
	s.queue(handled)
	s.must(s.ch.QueueBind(handled, "#", transport, false, nil))
	c, err := wayamqp.NewConsumer(wayamqp.Config{URL: s.broker, Queue: handled, QueueType: "classic"})
	s.must(err)
	bus := waybill.NewBus("stack")
	s.open(s.database).handle(bus, func() {})
	w, err := worker.New(bus, c, worker.Config{Transport: handled, Concurrency: 4, Retry: waybill.Backoff{Delay: 100 * time.Millisecond, MaxDelay: time.Second}})
	s.must(err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	s.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			s.Errorf("worker: %v", err)
		}
		_ = c.Close()
	})
}

// oneEffect waits until every message had its effect, and fails the test unless
// that is exactly one.
func (s *stack) oneEffect() {
	s.Helper()
	sent := s.count("SELECT count(*) FROM sent")
	s.eventually(patience, "every message was handled", func() bool {
		return s.count("SELECT count(DISTINCT message_id) FROM effects") >= sent
	})
	s.eventually(patience, "the worker's queue is empty", func() bool {
		q, err := s.ch.QueueDeclarePassive(handled, true, false, false, false, nil)
		s.must(err)
		return q.Messages == 0
	})
	time.Sleep(200 * time.Millisecond) // the last duplicates may be in flight
	if got := s.count("SELECT count(*) FROM effects"); got != sent {
		s.Errorf("%d effects of %d messages", got, sent)
	}
	if got := s.count("SELECT count(*) FROM effects e WHERE NOT EXISTS (SELECT 1 FROM sent s WHERE s.message_id = e.message_id AND s.k = e.k AND s.n = e.n)"); got != 0 {
		s.Errorf("%d effects of messages that were not committed", got)
	}
}

func TestRelayKilledAfterTheConfirmationsDeliversAgainTheSame(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		s.work()
		w := s.watch(everyone)
		kills := 2
		if *long {
			kills = 10
		}
		keys := keyNames("k", 20)
		for range kills {
			s.dispatch(keys, 3)
			p := s.start(role{Place: beforeSettle, Signal: syscall.SIGKILL})
			p.await(patience)
			if p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the relay ended otherwise: %v", p.cmd.ProcessState)
			}
		}
		s.quickRelay()
		v := w.judge(patience)
		t.Logf("%d kills: %v", kills, v)
		if v.Duplicates == 0 {
			t.Error("no duplicates: the kills struck nothing")
		}
		s.oneEffect()
	})
}

// A cutting is a place at which a connection is cut, by what passes through the
// proxy.
type cutting struct {
	place string
	// at arms one cut.
	at func(proxy *faultproxy.Proxy, i int)
	// duplicates must come of it.
	duplicates bool
}

// when cuts as soon as bytes of a direction contain what.
func when(dir faultproxy.Direction, what string, action faultproxy.Action) func(*faultproxy.Proxy, int) {
	return func(proxy *faultproxy.Proxy, _ int) {
		var struck atomic.Bool
		proxy.OnBytes(func(d faultproxy.Direction, b []byte) faultproxy.Action {
			if d == dir && bytes.Contains(b, []byte(what)) && struck.CompareAndSwap(false, true) {
				return action
			}
			return faultproxy.Pass
		})
	}
}

// answerOf cuts the answer to bytes that contain what.
func answerOf(what string, action faultproxy.Action) func(*faultproxy.Proxy, int) {
	return func(proxy *faultproxy.Proxy, _ int) {
		var asked, struck atomic.Bool
		proxy.OnBytes(func(d faultproxy.Direction, b []byte) faultproxy.Action {
			switch {
			case d == faultproxy.ToServer && bytes.Contains(b, []byte(what)):
				asked.Store(true)
			case d == faultproxy.ToClient && asked.Load() && struck.CompareAndSwap(false, true):
				return action
			}
			return faultproxy.Pass
		})
	}
}

// within cuts n bytes after bytes of the server's client that contain what, in
// a direction.
func within(dir faultproxy.Direction, what string, n func(i int) int64) func(*faultproxy.Proxy, int) {
	return func(proxy *faultproxy.Proxy, i int) {
		var struck atomic.Bool
		proxy.OnBytes(func(d faultproxy.Direction, b []byte) faultproxy.Action {
			if d == faultproxy.ToServer && bytes.Contains(b, []byte(what)) && struck.CompareAndSwap(false, true) {
				proxy.CutAfter(n(i), dir)
			}
			return faultproxy.Pass
		})
	}
}

// marker is in the body of every message.
const marker = `"Pad":"ppp`

func TestCutBetweenRelayAndBrokerDeliversAgainTheSame(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		spread := func(i int) int64 { return int64(1 + 97*i%1500) }
		testCuts(t, on, true, false, []cutting{
			{"before the publish", when(faultproxy.ToServer, marker, faultproxy.CutBefore), false},
			{"in the middle of a publish", within(faultproxy.ToServer, marker, spread), false},
			{"before the confirmation", answerOf(marker, faultproxy.CutBefore), true},
			{"after the confirmation", answerOf(marker, faultproxy.CutAfterThese), false},
		})
	})
}

func TestCutBetweenRelayAndDatabaseDeliversAgainTheSame(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		rows := func(i int) int64 { return int64(300 + 1997*i%8000) }
		testCuts(t, on, false, false, []cutting{
			{"before the claim's answer", answerOf(on.locks, faultproxy.CutBefore), false},
			{"in the middle of the rows", within(faultproxy.ToClient, on.reads, rows), false},
			{"before the commit", when(faultproxy.ToServer, on.deletes, faultproxy.CutBefore), true},
			{"after the commit, before its answer", answerOf(on.commits, faultproxy.CutBefore), false},
		})
	})
}

// Three messages of a key are on their way at once, and still none arrives
// before the one in front of it.
func TestCutBetweenPipelinedRelayAndBrokerKeepsTheOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		spread := func(i int) int64 { return int64(1 + 97*i%1500) }
		testCuts(t, on, true, true, []cutting{
			{"in the middle of a publish", within(faultproxy.ToServer, marker, spread), false},
			{"before the confirmation", answerOf(marker, faultproxy.CutBefore), true},
		})
	})
}

func testCuts(t *testing.T, on *kind, broker, pipelined bool, cuttings []cutting) {
	times := 2
	if *long {
		times = 15
	}
	for _, c := range cuttings {
		t.Run(c.place, func(t *testing.T) {
			t.Parallel()
			s := on.stack(t)
			s.pad = "pppppppppppppppppppppppppppppppp"
			s.work()
			w := s.watch(everyone)
			var proxy *faultproxy.Proxy
			// Statements go over the wire as text, so that the proxy knows them.
			database, address := on.text(s.database), s.broker
			if broker {
				proxy, address = s.through(address)
			} else {
				proxy, database = s.through(database)
			}
			cfg := quickRelay
			cfg.Workers, cfg.Pipelined = 1, pipelined
			s.relay(s.open(database), s.publisher(wayamqp.Config{URL: address}), cfg)
			keys := keyNames("k", 20)
			s.dispatch(keys, 1)
			w.await(20, patience)
			for i := range times {
				before := proxy.Counts().Resets
				c.at(proxy, i)
				s.dispatch(keys, 3)
				s.eventually(patience, "the cut strikes", func() bool { return proxy.Counts().Resets > before })
				w.await(20+60*(i+1), patience)
			}
			proxy.OnBytes(nil)
			v := w.judge(patience)
			t.Logf("%d cuts: %v", proxy.Counts().Resets, v)
			if c.duplicates && v.Duplicates == 0 {
				t.Error("no duplicates: the cuts struck elsewhere")
			}
			s.oneEffect()
			s.eventually(patience, "no row is left", func() bool { return s.left() == 0 && len(s.blocked()) == 0 })
		})
	}
}
