package wayamqp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
)

// through returns a proxy to the broker at address, and the URL that leads
// through it.
func through(tb testing.TB, address string) (*faultproxy.Proxy, string) {
	tb.Helper()
	u, err := url.Parse(address)
	if err != nil {
		tb.Fatal(err)
	}
	proxy, err := faultproxy.Start(u.Host)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(proxy.Close)
	u.Host = proxy.Addr()
	return proxy, u.String()
}

// wantCut fails the test unless all of errs are cuts, blamed or not.
func wantCut(t *testing.T, errs []error, blamed bool) {
	t.Helper()
	for i, err := range errs {
		var cut *outbox.ConnectionLostError
		if !errors.As(err, &cut) || cut.CausedByMessage != blamed || !errors.Is(err, waybill.ErrUnavailable) {
			t.Fatalf("item %d: %v (%T), want a cut with blame %t", i, err, err, blamed)
		}
	}
}

func TestLostConnectionLeavesNothingBehind(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	proxy, address := through(t, b.url)
	p := b.publisher(Config{URL: address, Exchange: "events"})
	goodOnes(t, publishAll(within(t, 10*time.Second), t, p, records("order.placed", 200)), -1)

	proxy.SwallowReplies(true) // all are in flight when the reset comes
	results := make(chan outbox.Result, 200)
	p.Publish(within(t, 30*time.Second), records("order.placed", 200), results)
	proxy.Reset()
	errs, err := collect(results, 200)
	if err != nil {
		t.Fatal(err)
	}
	wantCut(t, errs, false)

	proxy.SwallowReplies(false)
	goodOnes(t, publishAll(within(t, 10*time.Second), t, p, records("order.placed", 200)), -1)
}

func TestCutInTheMiddleOfPublishing(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	proxy, address := through(t, b.url)
	p := b.publisher(Config{URL: address, Exchange: "events"})
	for _, after := range []int64{1, 100, 1000, 5000, 20000, 30000} {
		goodOnes(t, publishAll(within(t, 10*time.Second), t, p, records("order.placed", 1)), -1)
		proxy.CutAfter(after, faultproxy.ToServer)
		sent, unsent := 0, 0
		for i, err := range publishAll(within(t, 10*time.Second), t, p, records("order.placed", 300)) {
			var cut *outbox.ConnectionLostError
			switch {
			case err == nil:
				sent++
			case !errors.Is(err, waybill.ErrUnavailable):
				t.Fatalf("after %d bytes, item %d: %v", after, i, err)
			case errors.As(err, &cut) && cut.CausedByMessage:
				t.Fatalf("after %d bytes, item %d is blamed: %v", after, i, err)
			default:
				unsent++
			}
		}
		if unsent == 0 {
			t.Errorf("the cut after %d bytes did not strike", after)
		}
	}
}

// B6: neither Publish nor Close waits for a socket that takes nothing.
func TestBlockedSocketEndsAtTheDeadline(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	for _, size := range []int{10, 1 << 20} { // it fits into the socket's buffer, or not
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			proxy, address := through(t, b.url)
			p := b.publisher(Config{URL: address, Exchange: "events", Heartbeat: time.Minute})
			goodOnes(t, publishAll(within(t, 10*time.Second), t, p, records("order.placed", 1)), -1)
			b.awaitReady("orders", 1)
			b.numbers("orders")
			l := p.alive()
			proxy.BlackHole(true)
			items := records("order.placed", 50)
			for i := range items {
				items[i].Record.Body = bytes.Repeat([]byte("x"), size)
			}
			results := make(chan outbox.Result, 50)
			deadline := time.Now().Add(500 * time.Millisecond)
			ctx, cancel := context.WithDeadline(t.Context(), deadline)
			defer cancel()
			p.Publish(ctx, items, results)
			errs, err := collect(results, 50)
			if late := time.Since(deadline); err != nil || late > 5*time.Second { // nothing else ends it within a minute
				t.Fatalf("the results came %v after the deadline: %v", late, err)
			}
			for i, err := range errs {
				if !errors.Is(err, waybill.ErrUnavailable) {
					t.Fatalf("item %d: %v", i, err)
				}
			}
			if _, err := l.conn.raw.Write([]byte{0}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("the socket is not closed: writing to it gives %v", err)
			}
			proxy.Reset() // bytes that the proxy has read already are not delivered
			proxy.BlackHole(false)
			goodOnes(t, publishAll(within(t, 10*time.Second), t, p, records("order.placed", 1)), -1)
			if n := b.ready("orders"); n != 1 {
				t.Errorf("the queue has %d messages, want the one published after the deadline", n)
			}
			b.take("orders")
		})
	}
}

func TestCloseDoesNotWaitForABlockedSocket(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	proxy, address := through(t, b.url)
	p := b.publisher(Config{URL: address, Exchange: "events", Heartbeat: time.Minute})
	c := b.consumer(Config{URL: address, Heartbeat: time.Minute})
	goodOnes(t, publishAll(within(t, 10*time.Second), t, p, records("order.placed", 1)), -1)
	ds := receive(t, c, 1)
	proxy.BlackHole(true)
	big := record("order.placed", 0)
	big.Body = make([]byte, 64<<20)
	results := make(chan outbox.Result, 1)
	var wg sync.WaitGroup
	wg.Go(func() { p.Publish(context.WithoutCancel(t.Context()), []outbox.Item{{Record: big}}, results) })
	for proxy.Counts().BlackHoles == 0 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond) // the write is stuck
	start := time.Now()
	_ = p.Close()
	_ = c.Ack(t.Context(), ds...)
	_ = c.Close()
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("closing both took %v", took)
	}
	wg.Wait()
	if _, err := collect(results, 1); err != nil {
		t.Error(err)
	}
}

func TestSilentBrokerEndsTheDial(t *testing.T) {
	b := newBroker(t)
	proxy, address := through(t, b.url)
	proxy.BlackHole(true)
	p := b.publisher(Config{URL: address, Exchange: "events", DialTimeout: 300 * time.Millisecond})
	start := time.Now()
	err := p.Send(within(t, 10*time.Second), record("order.placed", 0))
	if took := time.Since(start); !errors.Is(err, waybill.ErrUnavailable) || took > 2*time.Second {
		t.Errorf("DialTimeout: %v after %v", err, took)
	}
	p = b.publisher(Config{URL: address, Exchange: "events"})
	start = time.Now()
	err = p.Send(within(t, 300*time.Millisecond), record("order.placed", 0))
	if took := time.Since(start); !errors.Is(err, waybill.ErrUnavailable) || took > 2*time.Second {
		t.Errorf("context: %v after %v", err, took)
	}
}

func TestFrozenBrokerIsNoticedByTheHeartbeat(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	proxy, address := through(t, b.url)
	p := b.publisher(Config{URL: address, Exchange: "events", Heartbeat: time.Second})
	goodOnes(t, publishAll(within(t, 10*time.Second), t, p, records("order.placed", 1)), -1)
	proxy.SwallowReplies(true)
	start := time.Now()
	errs := publishAll(within(t, 20*time.Second), t, p, records("order.placed", 3))
	wantCut(t, errs, false)
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("it took %v with a heartbeat of 1 s", took)
	}
}

// The heartbeat finds the connection dead before the publish deadline does,
// while a write is stuck: the library waits for that write before it closes the
// socket.
func TestWriterIsFreedWhenTheHeartbeatEndsTheConnection(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	proxy, address := through(t, b.url)
	p := b.publisher(Config{URL: address, Exchange: "events", Heartbeat: time.Second})
	goodOnes(t, publishAll(within(t, 10*time.Second), t, p, records("order.placed", 1)), -1)
	proxy.BlackHole(true)
	big := record("order.placed", 0)
	big.Body = make([]byte, 64<<20)
	results := make(chan outbox.Result, 1)
	start := time.Now()
	p.Publish(within(t, time.Minute), []outbox.Item{{Record: big}}, results)
	if _, err := collect(results, 1); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("Publish was stuck for %v with a heartbeat of 1 s", took)
	}
}

func TestBlockedPublisherWaitsAndSaysWhy(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	in, address := inject(t, b.url)
	p := b.publisher(Config{URL: address, Exchange: "events"})
	goodOnes(t, publishAll(within(t, 10*time.Second), t, p, records("order.placed", 1)), -1)
	l := p.alive()
	in.blocked("low on memory")
	for l.raised() == nil {
		time.Sleep(time.Millisecond)
	}
	for _, err := range publishAll(within(t, time.Second), t, p, records("order.placed", 3)) {
		var cut *outbox.ConnectionLostError
		if !errors.Is(err, waybill.ErrUnavailable) || errors.As(err, &cut) || !strings.Contains(err.Error(), "blocks publishers: low on memory") {
			t.Errorf("got %v", err)
		}
	}
	if p.alive() != l {
		t.Error("the connection was given up, although nothing was in flight")
	}
	if n := b.ready("orders"); n != 1 {
		t.Errorf("the queue has %d messages, want 1", n)
	}
	sent := make(chan error, 1)
	go func() { sent <- p.Send(within(t, 10*time.Second), record("order.placed", 1)) }()
	time.Sleep(50 * time.Millisecond) // it waits
	in.unblocked()
	if err := <-sent; err != nil {
		t.Errorf("after the alarm: %v", err)
	}
}

func TestBrokerInAlarmBlocks(t *testing.T) {
	s := testserver.StartRabbitMQ(t, map[string]string{"vm_memory_high_watermark.absolute": "1MB"})
	b := brokerAt(t, s.URL())
	b.topic("events", "orders")
	p := b.publisher(Config{Exchange: "events"})
	said := false
	for range 20 { // the broker may take the first
		err := p.Send(within(t, 2*time.Second), record("order.placed", 1)) // it dials, too
		if said = err != nil && strings.Contains(err.Error(), "blocks publishers: low on memory"); said {
			break
		}
	}
	if !said {
		t.Error("no publish said that the broker blocks publishers")
	}
}

func TestBlameOfAClosedConnection(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	b.topic("others", "orders")
	in, address := inject(t, b.url)
	p := b.publisher(Config{URL: address, Exchange: "events", Routes: func(name string) (string, string) {
		if name == "other" {
			return "others", ""
		}
		return "", ""
	}})
	send := func(n int, code int) []error {
		t.Helper()
		goodOnes(t, publishAll(within(t, 10*time.Second), t, p, append(records("order.placed", 1), outbox.Item{Seq: 1, Record: record("other", 0)})), -1)
		l := p.alive()
		// The broker is closing when they are written: no confirmation comes.
		in.mu.Lock()
		items := records("order.placed", n)
		if n > 1 {
			items[1].Record.Name = "other"
		}
		results := make(chan outbox.Result, n)
		p.Publish(within(t, 10*time.Second), items, results)
		in.mu.Unlock()
		in.close(code, "A REASON - of the broker")
		<-l.closed
		var errs []error
		for range n {
			errs = append(errs, (<-results).Err)
		}
		return errs
	}
	wantCut(t, send(2, 320), false)
	errs := send(2, 541)
	for _, err := range errs {
		if err != nil && !strings.Contains(err.Error(), "541 A REASON - of the broker") {
			t.Errorf("got %v", err)
		}
	}
	wantCut(t, errs, true)
	if err := send(1, 541)[0]; err == nil || errors.Is(err, waybill.ErrUnavailable) || !strings.Contains(err.Error(), "541") {
		t.Errorf("alone in flight: %v, want a refusal", err)
	}
}

func TestRefusalsOfTheBroker(t *testing.T) {
	s := testserver.StartRabbitMQ(t, map[string]string{"max_message_size": "100000", "frame_max": "8192"})
	b := brokerAt(t, s.URL())
	b.topic("open", "orders")
	b.topic("closed", "orders")
	api(t, s.API(), "users/limited", `{"password":"limited","tags":""}`)
	api(t, s.API(), "permissions/waybill/limited", `{"configure":"","write":"^open$","read":".*"}`)
	api(t, s.API(), "topic-permissions/waybill/limited", `{"exchange":"open","write":"^(order|large)","read":".*"}`)
	address := strings.Replace(s.URL(), "waybill:waybill@", "limited:limited@", 1)
	p := b.publisher(Config{URL: address, Exchange: "open", Routes: func(name string) (string, string) {
		if name == "bad" {
			return "closed", ""
		}
		return "", ""
	}})

	t.Run("403 of an exchange", func(t *testing.T) {
		items := records("order.placed", 300)
		items[10].Record.Name = "bad"
		errs := publishAll(within(t, 10*time.Second), t, p, items)
		goodOnes(t, errs, 10)
		var unroutable *outbox.UnroutableError
		if !errors.As(errs[10], &unroutable) || !strings.HasPrefix(unroutable.Reason, "403 ACCESS_REFUSED") {
			t.Errorf("got %v", errs[10])
		}
	})
	t.Run("403 of a topic among others", func(t *testing.T) {
		items := records("order.placed", 300)
		items[10].Record.Name = "secret"
		blamed := 0
		for i, err := range publishAll(within(t, 10*time.Second), t, p, items) {
			var cut *outbox.ConnectionLostError
			var unroutable *outbox.UnroutableError
			if errors.As(err, &cut) && cut.CausedByMessage {
				blamed++
			} else if err != nil && !errors.Is(err, waybill.ErrUnavailable) && (i != 10 || !errors.As(err, &unroutable)) {
				t.Fatalf("item %d: %v", i, err)
			}
		}
		t.Logf("%d are blamed", blamed)
		var unroutable *outbox.UnroutableError
		if err := p.Send(within(t, 10*time.Second), items[10].Record); !errors.As(err, &unroutable) {
			t.Errorf("alone: %v, want unroutable", err)
		}
		if err := p.Send(within(t, 10*time.Second), items[11].Record); err != nil {
			t.Errorf("another: %v", err)
		}
	})
	t.Run("406 of a body", func(t *testing.T) {
		items := records("order.placed", 300)
		items[10].Record.Body = make([]byte, 200000)
		for i, err := range publishAll(within(t, 10*time.Second), t, p, items) {
			if err != nil && i != 10 && !errors.Is(err, waybill.ErrUnavailable) {
				t.Fatalf("item %d is refused for another: %v", i, err)
			}
			if i == 10 && err == nil {
				t.Error("it was judged delivered")
			}
		}
		err := p.Send(within(t, 10*time.Second), items[10].Record)
		if err == nil || errors.Is(err, waybill.ErrUnavailable) || !strings.Contains(err.Error(), "406 PRECONDITION_FAILED") {
			t.Errorf("alone: %v, want a refusal with the broker's words", err)
		}
		if err := p.Send(within(t, 10*time.Second), items[11].Record); err != nil {
			t.Errorf("another: %v", err)
		}
	})
	t.Run("headers of just one frame", func(t *testing.T) {
		rec := record("order.placed", 1)
		with := func(n int) *waybill.Record {
			rec.Headers = map[string]string{"x-correlation-id": "c", "big": strings.Repeat("x", n)}
			return rec
		}
		most := 7000
		for p.cfg.fits(with(most+1), 8192) {
			most++
		}
		if err := p.Send(within(t, 10*time.Second), with(most)); err != nil {
			t.Errorf("a header of %d bytes: %v", most, err)
		}
		var limit *waybill.LimitError
		if err := p.Send(within(t, 10*time.Second), with(most+1)); !errors.As(err, &limit) || limit.Got != 8193 {
			t.Errorf("a header of %d bytes: %v", most+1, err)
		}
	})
	t.Run("killed and started", func(t *testing.T) {
		s.Kill()
		if err := p.Send(within(t, 10*time.Second), record("order.placed", 0)); !errors.Is(err, waybill.ErrUnavailable) {
			t.Errorf("of a dead broker: %v", err)
		}
		s.Start()
		if err := p.Send(within(t, 10*time.Second), record("order.placed", 0)); err != nil {
			t.Errorf("of one that is back: %v", err)
		}
	})
}

// fits reports whether rec can be published with frames of that size.
func (cfg *Config) fits(rec *waybill.Record, frame int) bool {
	_, err := cfg.encode(amqp.Table{}, rec, "open", rec.Name, frame)
	return err == nil
}

func api(t *testing.T, base, path, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, base+"/api/"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode >= 300 {
		t.Fatalf("%s: %s %s", path, resp.Status, text)
	}
}

// The law: whatever happens to the connection, every item gets one result, and
// every message that is judged delivered is in the queue.
func TestEveryItemGetsOneResultUnderFaults(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	proxy, address := through(t, b.url)
	p := b.publisher(Config{URL: address, Exchange: "events", DialTimeout: 500 * time.Millisecond, Routes: func(name string) (string, string) {
		switch name {
		case "missing":
			return "missing", ""
		case "lost":
			return "", "lost"
		}
		return "", ""
	}})
	b.must(b.ch.QueueUnbind("orders", "#", "events", nil))
	b.must(b.ch.QueueBind("orders", "order.placed", "events", false, nil))
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	done := make(chan struct{})
	var faults, publishers sync.WaitGroup
	faults.Go(func() {
		r := rand.New(rand.NewPCG(seed, 0))
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Duration(r.IntN(60)) * time.Millisecond):
			}
			switch r.IntN(6) {
			case 0:
				proxy.Reset()
			case 1:
				proxy.CutAfter(r.Int64N(20000), faultproxy.ToServer)
			case 2:
				proxy.CutAfter(r.Int64N(5000), faultproxy.ToClient)
			case 3:
				proxy.BlackHole(true)
				time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
				proxy.BlackHole(false)
			case 4:
				proxy.SwallowReplies(true)
				time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
				proxy.Reset()
				proxy.SwallowReplies(false)
			case 5:
				time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
			}
		}
	})
	var mu sync.Mutex
	delivered, failed := map[string]bool{}, 0
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(delivered) >= 100 && failed >= 100
	}
	for worker := range uint64(3) {
		publishers.Go(func() {
			r := rand.New(rand.NewPCG(seed, worker+1))
			// For longer where a slow machine has had too few of either.
			for start := time.Now(); time.Since(start) < 8*time.Second || !enough() && time.Since(start) < time.Minute; {
				items := records("order.placed", 1+r.IntN(200))
				for i := range items {
					switch r.IntN(100) {
					case 0:
						items[i].Record.Name = "missing"
					case 1, 2:
						items[i].Record.Name = "lost"
					case 3:
						items[i].Record.Headers = map[string]string{"CC": "x"}
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(50+r.IntN(400))*time.Millisecond)
				results := make(chan outbox.Result, len(items)+8)
				p.Publish(ctx, items, results)
				errs, err := collect(results, len(items))
				cancel()
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for i, err := range errs {
					rec := items[i].Record
					if err != nil {
						failed++
						continue
					}
					if rec.Name != "order.placed" || rec.Headers != nil {
						t.Errorf("a message that cannot be routed was judged delivered: %s", rec.Name)
					}
					delivered[rec.ID.String()] = true
				}
				mu.Unlock()
			}
		})
	}
	publishers.Wait()
	close(done)
	faults.Wait()
	if !enough() {
		t.Errorf("%d delivered and %d failed: that proves nothing", len(delivered), failed)
	}
	all := len(delivered)
	arrived := 0
	for {
		d, ok, err := b.ch.Get("orders", true)
		b.must(err)
		if !ok {
			break
		}
		arrived++
		delete(delivered, d.MessageId)
	}
	t.Logf("%d delivered, %d arrived, %d failed, %+v", all, arrived, failed, proxy.Counts())
	if len(delivered) > 0 {
		t.Errorf("%d messages were judged delivered and are not in the queue", len(delivered))
	}
}

// While this side cuts the connection, the library goes on reading: the ack of a message that
// arrives after the last look for returns may be that of a returned one.
func TestAckBehindTheLastReturnIsNoConfirmation(t *testing.T) {
	b := newBroker(t)
	b.topic("events", "orders")
	p := b.publisher(Config{Exchange: "events"})
	goodOnes(t, publishAll(within(t, 20*time.Second), t, p, records("x", 1)), -1)
	channel := p.alive().find("events")
	stored, err := channel.ch.PublishWithDeferredConfirm("events", "x", true, false, amqp.Publishing{})
	b.must(err)
	if !stored.Wait() {
		t.Fatal("the broker refused a message")
	}
	before, beside := &publish{confirm: stored}, &publish{confirm: new(amqp.DeferredConfirmation)}
	c := &confirmChannel{pending: []*publish{before, beside}}
	known, lost := c.divide(func() { beside.confirm = stored }) // its return came, too, after the last look
	if len(known) != 1 || known[0] != before || len(lost) != 1 || lost[0] != beside {
		t.Errorf("%d are known and %d lost, want the ack from before the look alone to count", len(known), len(lost))
	}
}
