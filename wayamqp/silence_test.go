package wayamqp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
)

// A silentBroker has an exchange events with two queues: healthy, for the messages
// order.*, and silent, for the messages silent.
type silentBroker struct {
	*broker
	server *testserver.Server
}

func newSilentBroker(t *testing.T, kind string) silentBroker {
	s := testserver.StartRabbitMQ(t, nil)
	b := silentBroker{brokerAt(t, s.URL()), s}
	b.topic("events")
	for queue, key := range map[string]string{"healthy": "order.*", "silent": "silent"} {
		b.queue(queue, amqp.Table{"x-queue-type": kind})
		b.must(b.ch.QueueBind(queue, key, "events", false, nil))
	}
	return b
}

// suspend stops the process of the queue silent: it accepts messages and confirms
// none until resume.
func (b silentBroker) suspend() { b.eval("suspend") }
func (b silentBroker) resume()  { b.eval("resume") }

func (b silentBroker) eval(verb string) {
	b.Helper()
	b.server.Eval(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"waybill">>, queue, <<"silent">>)), ok = sys:` + verb + `(amqqueue:get_pid(Q)).`)
}

// eventually fails the test unless ok becomes true within ten seconds.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	tb.Fatalf("it never came true that %s", what)
}

// wantUnconfirmed fails the test unless err is an UnconfirmedError of the queue
// silent.
func wantUnconfirmed(tb testing.TB, err error) {
	tb.Helper()
	var silent *outbox.UnconfirmedError
	if !errors.As(err, &silent) || silent.Exchange != "events" || silent.RoutingKey != "silent" || silent.After <= 0 {
		tb.Fatalf("got %v (%T), want an UnconfirmedError of the queue silent", err, err)
	}
}

// C4: of a silent queue only its own publishes fail. Publishes to the healthy queue
// keep their connection and their latency.
func TestSilentQueueIsItsOwnFailure(t *testing.T) {
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			b := newSilentBroker(t, kind)
			p := b.publisher(Config{Exchange: "events"})
			goodOnes(t, publishAll(within(t, 20*time.Second), t, p, append(records("order.placed", 10), outbox.Item{Seq: 10, Record: record("silent", 0)})), -1)
			conn := p.alive()
			b.suspend()

			const n = 20
			results := make(chan outbox.Result, n)
			start := time.Now()
			p.Publish(within(t, time.Minute), records("silent", n), results)
			var latencies []time.Duration
			for len(results) < n {
				begin := time.Now()
				goodOnes(t, publishAll(within(t, 20*time.Second), t, p, records("order.placed", 5)), -1)
				latencies = append(latencies, time.Since(begin))
				if time.Since(start) > 20*time.Second {
					t.Fatalf("%d of %d silent messages were answered", len(results), n)
				}
			}
			t.Logf("answered after %v", time.Since(start))
			for range n {
				wantUnconfirmed(t, (<-results).Err)
			}
			slices.Sort(latencies)
			if median := latencies[len(latencies)/2]; median > 500*time.Millisecond { // a silent message takes a second
				t.Errorf("the median of %d healthy batches is %v", len(latencies), median)
			}
			if p.alive() != conn {
				t.Error("the connection was cut for a silent queue")
			}

			// Late confirmations give no second result, and free their slots.
			channel := conn.find("events")
			if got := len(channel.slots); got != n {
				t.Errorf("%d slots are taken, want %d", got, n)
			}
			b.resume()
			eventually(t, "the late confirmations made room", func() bool { return len(channel.slots) == 0 })
			goodOnes(t, publishAll(within(t, 20*time.Second), t, p, records("silent", n)), -1)
			channel.mu.Lock()
			defer channel.mu.Unlock()
			if len(results) > 0 || channel.silent != 0 {
				t.Errorf("%d second answers, %d are still silent", len(results), channel.silent)
			}
		})
	}
}

// RabbitMQ stops reading a connection with too many messages for a silent quorum
// queue. Publishes to the healthy queue then wait for a new connection, and not for
// their deadline.
func TestHaltBehindASilentQueueIsShort(t *testing.T) {
	b := newSilentBroker(t, "quorum")
	p := b.publisher(Config{Exchange: "events"})
	goodOnes(t, publishAll(within(t, 20*time.Second), t, p, append(records("order.placed", 10), outbox.Item{Seq: 10, Record: record("silent", 0)})), -1)
	conn := p.alive()
	b.suspend()
	const n = 100
	results := make(chan outbox.Result, n)
	p.Publish(within(t, time.Minute), records("silent", n), results)
	cuts := 0
	var slowest time.Duration
	for healthy := 0; healthy < 5000; {
		begin := time.Now()
		for _, err := range publishAll(within(t, 30*time.Second), t, p, records("order.placed", 50)) {
			var cut *outbox.ConnectionLostError
			switch {
			case err == nil:
				healthy++
			case errors.As(err, &cut) && !cut.CausedByMessage:
				cuts++
			case !errors.Is(err, waybill.ErrUnavailable):
				t.Fatal(err)
			}
		}
		slowest = max(slowest, time.Since(begin))
	}
	t.Logf("%d were cut, the slowest batch took %v", cuts, slowest)
	if cuts == 0 || p.alive() == conn {
		t.Error("the broker did not stop reading: that proves nothing")
	}
	if slowest > 15*time.Second {
		t.Errorf("the slowest batch took %v", slowest)
	}
	for range n {
		wantUnconfirmed(t, (<-results).Err)
	}
	b.resume()
}

// A connection is cut when silent publishes keep too many slots of a channel.
func TestChannelCrowdedByTheSilentIsGivenUp(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	p := b.publisher(Config{Exchange: "events"})
	goodOnes(t, publishAll(within(t, 20*time.Second), t, p, records("order.placed", 1)), -1)
	conn := p.alive()
	channel := conn.find("events")
	const n = maxUnresolved/2 + 1
	results := make(chan outbox.Result, n)
	batch := newPublishBatch(&p.cfg, results, n)
	for i := range n {
		silent := &publish{seq: i, batch: batch, exchange: "events", key: "silent", mark: mark{sent: time.Now().Add(-time.Second)}}
		silent.confirm = new(amqp.DeferredConfirmation) // never resolved
		if !channel.add(silent) {
			t.Fatal("the channel has ended")
		}
	}
	channel.declareUnconfirmed(func(*publish) bool { return true })
	conn.expire(batch, context.DeadlineExceeded) // of a batch that ends at the same time
	errs, err := collect(results, n)
	b.must(err)
	wantUnconfirmed(t, errs[n-1])
	eventually(t, "the connection is given up", func() bool { return p.alive() != conn })
	goodOnes(t, publishAll(within(t, 20*time.Second), t, p, records("order.placed", 1)), -1)
}

func TestDeadlineOfASilentQueue(t *testing.T) {
	b := newSilentBroker(t, "classic")
	p := b.publisher(Config{Exchange: "events", ConfirmWithin: time.Hour})
	goodOnes(t, publishAll(within(t, 20*time.Second), t, p, records("order.placed", 1)), -1)
	conn := p.alive()
	b.suspend()

	t.Run("others were confirmed", func(t *testing.T) {
		items := append(records("silent", 2), outbox.Item{Seq: 2, Record: record("order.placed", 0)})
		errs := publishAll(within(t, 3*time.Second), t, p, items)
		wantUnconfirmed(t, errs[0])
		wantUnconfirmed(t, errs[1])
		if errs[2] != nil || p.alive() != conn {
			t.Errorf("the healthy one: %v, same connection: %t", errs[2], p.alive() == conn)
		}
	})
	t.Run("it was the last", func(t *testing.T) {
		items := append(records("order.placed", 1), outbox.Item{Seq: 1, Record: record("silent", 0)})
		errs := publishAll(within(t, 3*time.Second), t, p, items)
		if errs[0] != nil {
			t.Errorf("the healthy one: %v", errs[0])
		}
		wantCut(t, errs[1:], false)
		<-conn.closed
	})
	b.resume()
}

// looksAt returns the number of looks at a connection.
func looksAt(conn *publisherConn) uint64 {
	conn.progress.mu.Lock()
	defer conn.progress.mu.Unlock()
	return conn.progress.looks
}

// During a memory alarm no publish is declared unconfirmed.
func TestNothingIsUnconfirmedWhileTheBrokerBlocks(t *testing.T) {
	b := newSilentBroker(t, "classic")
	in, address := inject(t, b.url)
	p := b.publisher(Config{URL: address, Exchange: "events", ConfirmWithin: 100 * time.Millisecond})
	goodOnes(t, publishAll(within(t, 20*time.Second), t, p, records("order.placed", 1)), -1)
	conn := p.alive()
	b.suspend()
	looks := func() uint64 { return looksAt(conn) }

	in.blocked("low on memory")
	eventually(t, "the alarm is known", func() bool { return conn.raised() != nil })
	silent, healthy := make(chan outbox.Result, 1), make(chan outbox.Result, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	conn.mu.Lock()
	alarm := conn.alarm
	conn.alarm = nil // as for a message sent just before
	conn.mu.Unlock()
	p.Publish(ctx, records("silent", 1), silent)
	p.Publish(ctx, records("order.placed", 1), healthy)
	conn.mu.Lock()
	conn.alarm = alarm
	conn.mu.Unlock()
	if r := <-healthy; r.Err != nil {
		t.Fatal(r.Err)
	}
	from := looks()
	eventually(t, "looks went by", func() bool { return looks() > from+4*looksWithin })
	if len(silent) > 0 {
		t.Fatalf("while the broker blocks publishers: %v", <-silent)
	}
	from = looks()
	in.unblocked()
	wantUnconfirmed(t, (<-silent).Err)
	if got := looks() - from; got < looksWithin {
		t.Errorf("unconfirmed %d looks after the alarm, want %d at least", got, looksWithin)
	}

	t.Run("at the deadline", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p.Publish(ctx, records("silent", 1), silent)
		goodOnes(t, publishAll(within(t, 20*time.Second), t, p, records("order.placed", 1)), -1)
		in.blocked("low on memory")
		eventually(t, "the alarm is known", func() bool { return conn.raised() != nil })
		cancel()
		var cut *outbox.ConnectionLostError
		if err := (<-silent).Err; !errors.Is(err, errBlocked) || !errors.Is(err, waybill.ErrUnavailable) || errors.As(err, &cut) {
			t.Errorf("%v (%T), want an outage for which no message is suspected", err, err)
		}
	})
	b.resume()
}

func TestSilenceIsCountedInLooks(t *testing.T) {
	const wait = looksWithin + 1
	for _, tt := range []struct {
		name string
		does func(pr *progress, m *mark) // after m was written, and before the looks
		want bool
	}{
		{"nothing else was sent", func(*progress, *mark) {}, false},
		{"another one was confirmed", func(pr *progress, _ *mark) { another(pr) }, true},
		{"an earlier one was confirmed", func(pr *progress, _ *mark) { pr.confirm(mark{number: 1}) }, false},
		{"another one was written while m was", func(pr *progress, m *mark) {
			n := pr.begin()
			pr.written(m)
			pr.confirm(mark{number: n})
		}, false},
		{"the broker blocked publishers meanwhile", func(pr *progress, _ *mark) {
			another(pr)
			for range looksWithin {
				pr.observe(true)
			}
		}, true}, // but not earlier: the looks before do not count
	} {
		t.Run(tt.name, func(t *testing.T) {
			pr := progress{begun: 1}
			m := mark{number: pr.begin()}
			pr.written(&m)
			tt.does(&pr, &m)
			var l observation
			for n := range wait {
				if n > 0 && l.silent(m) {
					t.Errorf("silent after %d looks", n)
				}
				l = pr.observe(false)
			}
			if got := l.silent(m); got != tt.want {
				t.Errorf("silent after %d looks: %t", wait, got)
			}
		})
	}
	t.Run("it was overtaken only now", func(t *testing.T) {
		var pr progress
		m := mark{number: pr.begin()}
		pr.written(&m)
		for range 10 * wait {
			pr.observe(false)
		}
		another(&pr)
		if pr.observe(false).silent(m) {
			t.Error("silent before what came with the confirmation was handled")
		}
		if !pr.observe(false).silent(m) {
			t.Error("not silent afterwards")
		}
	})
}

func TestHaltIsTheSilenceOfAll(t *testing.T) {
	var pr progress
	m := mark{number: pr.begin()}
	pr.written(&m)
	halts := func(looks int) (l observation) {
		for range looks {
			if l = pr.observe(false); l.halted(m) {
				t.Fatalf("halted at look %d", l.number)
			}
		}
		return l
	}
	halts(looksWithin)
	pr.confirm(mark{}) // an earlier publish
	halts(looksWithin)
	pr.observe(true)
	halts(looksWithin)
	if !pr.observe(false).halted(m) {
		t.Error("not halted although nothing moves")
	}
}

// another begins and confirms a later publish.
func another(pr *progress) {
	m := mark{number: pr.begin()}
	pr.written(&m)
	pr.confirm(m)
}

// Publishes answered as unconfirmed get no second result at the end of the
// connection.
func TestUnconfirmedIsAnsweredOnce(t *testing.T) {
	b := newSilentBroker(t, "classic")
	p := b.publisher(Config{Exchange: "events", ConfirmWithin: 100 * time.Millisecond})
	goodOnes(t, publishAll(within(t, 20*time.Second), t, p, records("order.placed", 1)), -1)
	b.suspend()
	results := make(chan outbox.Result, 4)
	p.Publish(within(t, time.Minute), append(records("silent", 2), outbox.Item{Seq: 2, Record: record("order.placed", 0)}), results)
	errs, err := collect(results, 3)
	b.must(err)
	wantUnconfirmed(t, errs[0])
	wantUnconfirmed(t, errs[1])
	b.must(p.Close())
	if len(results) > 0 {
		t.Errorf("a second answer: %v", <-results)
	}
	b.resume()
	eventually(t, "both were stored after all", func() bool { return b.ready("silent") == 2 })
}

// The isolated publisher has its own connection, whose end affects no other.
func TestIsolatedPublisherHasItsOwnConnection(t *testing.T) {
	b := newSilentBroker(t, "classic")
	p := b.publisher(Config{Exchange: "events", Heartbeat: 7 * time.Second})
	isolated := p.Isolated()
	if h := isolated.Traits().Heartbeat; h != 7*time.Second {
		t.Errorf("heartbeat %v", h)
	}
	if s := isolated.Traits().Stream(record("silent", 0)); s != "events" {
		t.Errorf("stream %q", s)
	}
	goodOnes(t, publishAll(within(t, 20*time.Second), t, p, records("order.placed", 1)), -1)
	conn := p.alive()
	if isolated.(*Publisher).alive() != nil {
		t.Error("it connects before there is something to publish")
	}
	b.suspend()
	wantCut(t, publishAll(within(t, time.Second), t, isolated, records("silent", 1)), false)
	if p.alive() != conn {
		t.Error("the other connection was cut")
	}
	b.resume()
	goodOnes(t, publishAll(within(t, 20*time.Second), t, isolated, records("silent", 1)), -1)
	b.must(p.Close())
	err := publishAll(within(t, 20*time.Second), t, isolated, records("silent", 1))[0]
	if !errors.Is(err, errPublisherClosed) {
		t.Errorf("after Close of its parent: %v", err)
	}
	if fmt.Sprint(isolated.(*Publisher).alive()) != "<nil>" {
		t.Error("it is still connected")
	}
}

// A silent publish that half a million later ones have overtaken is given up with its connection.
func TestSilentPublishIsNotWaitedForForEver(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	p := b.publisher(Config{Exchange: "events", ConfirmWithin: 100 * time.Millisecond})
	goodOnes(t, publishAll(within(t, 20*time.Second), t, p, records("order.placed", 1)), -1)
	conn := p.alive()
	channel, results := conn.find("events"), make(chan outbox.Result, 1)
	silent := &publish{batch: newPublishBatch(&p.cfg, results, 1), exchange: "events", key: "silent", mark: mark{sent: time.Now()}}
	silent.confirm = new(amqp.DeferredConfirmation) // never resolved
	if !channel.add(silent) {
		t.Fatal("the channel has ended")
	}
	overtake := func(by uint64) {
		conn.progress.mu.Lock()
		defer conn.progress.mu.Unlock()
		conn.progress.begun = silent.mark.number + by
		conn.progress.confirmed = conn.progress.begun
	}
	overtake(maxOvertaken)
	wantUnconfirmed(t, (<-results).Err)
	from := looksAt(conn)
	eventually(t, "looks went by", func() bool { return looksAt(conn) > from+2*looksWithin })
	if p.alive() != conn {
		t.Fatal("the connection is cut already")
	}
	overtake(maxOvertaken + 1)
	eventually(t, "the connection is given up", func() bool { return p.alive() != conn })
}
