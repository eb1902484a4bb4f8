package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/internal/test/verdict"
)

// An arrival is a message as it came out of a queue.
type arrival struct {
	counted
	name, id, key string
	at            time.Time
}

// A watch takes everything out of a queue, in its order.
type watch struct {
	s *stack

	mu   sync.Mutex
	all  []arrival
	ids  map[string]int // how often each has arrived
	next chan struct{}  // closed and replaced at each arrival
}

// watch consumes a queue from now on, on a separate connection.
func (s *stack) watch(queue string) *watch {
	s.Helper()
	return s.watchSlowly(queue, 0, 0)
}

// watchSlowly is watch with so many messages at once, which takes a while over
// each. Zero means as many as there are.
func (s *stack) watchSlowly(queue string, prefetch int, each time.Duration) *watch {
	s.Helper()
	conn, err := amqp.Dial(s.broker)
	s.must(err)
	ch, err := conn.Channel()
	s.must(err)
	s.must(ch.Qos(prefetch, 0, false))
	deliveries, err := ch.Consume(queue, "", prefetch == 0, false, false, false, nil)
	s.must(err)
	w := &watch{s: s, ids: map[string]int{}, next: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		for d := range deliveries {
			w.take(d)
			if prefetch > 0 {
				time.Sleep(each)
				_ = d.Ack(false) // or the connection has ended
			}
		}
	})
	s.Cleanup(func() {
		_ = conn.Close()
		wg.Wait()
	})
	return w
}

func (w *watch) take(d amqp.Delivery) {
	a := arrival{name: d.Type, id: d.MessageId, at: time.Now()}
	a.key, _ = d.Headers["x-partition-key"].(string)
	if err := json.Unmarshal(d.Body, &a.counted); err != nil {
		w.s.Errorf("body of %s: %v", d.MessageId, err)
	}
	a.Pad = ""
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, a)
	w.ids[a.id]++
	close(w.next)
	w.next = make(chan struct{})
}

// arrived returns the messages that have arrived so far.
func (w *watch) arrived() []arrival {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]arrival(nil), w.all...)
}

// messages counts the different ids.
func (w *watch) messages() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ids)
}

// of returns how many different messages of a key have come.
func (w *watch) of(key string) int {
	seen := map[string]bool{}
	for _, a := range w.arrived() {
		if a.Key == key {
			seen[a.id] = true
		}
	}
	return len(seen)
}

// await waits for n different messages and says how long that took.
func (w *watch) await(n int, limit time.Duration) time.Duration {
	w.s.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(w.s.Context(), limit)
	defer cancel()
	for {
		w.mu.Lock()
		have, next := len(w.ids), w.next
		w.mu.Unlock()
		if have >= n {
			return time.Since(start)
		}
		select {
		case <-next:
		case <-ctx.Done():
			w.s.Fatalf("%d messages within %v, want %d", have, limit, n)
		}
	}
}

// judge waits until all that was committed has arrived, or a while has passed,
// and fails the test unless every message came with its own id, in the order of
// its key. Duplicates are for the caller to judge.
func (w *watch) judge(limit time.Duration) result {
	s := w.s
	s.Helper()
	want := s.count("SELECT count(*) FROM sent")
	for start := time.Now(); w.messages() < want && time.Since(start) < limit; {
		time.Sleep(20 * time.Millisecond)
	}
	v := s.compare(w.arrived())
	if v.Committed == 0 || v.Lost+v.Phantoms+v.Disorders+v.IDChanges != 0 {
		s.Errorf("%v: want all, as they were committed, in order", v)
	}
	return v
}

func (s *stack) compare(arrived []arrival) result {
	s.Helper()
	pool, query := s.db.look("SELECT k, n, name, message_id FROM sent")
	rows, err := pool.QueryContext(s.Context(), query)
	s.must(err)
	defer func() { _ = rows.Close() }()
	var committed, came []verdict.Message
	for rows.Next() {
		var a arrival
		s.must(rows.Scan(&a.Key, &a.N, &a.name, &a.id))
		a.key = a.Key
		committed = append(committed, a.verdict())
	}
	s.must(rows.Err())
	for _, a := range arrived {
		came = append(came, a.verdict())
	}
	r := result{len(committed), verdict.Compare(committed, came)}
	for _, words := range r.Words {
		s.Log(words)
	}
	return r
}

// verdict returns the message as package verdict compares it.
func (a arrival) verdict() verdict.Message {
	return verdict.Message{Key: a.Key, N: a.N, ID: a.id, Origin: a.name + " of " + a.key}
}

// A result is the comparison of the committed messages with the arrived ones.
type result struct {
	Committed int
	verdict.Findings
}

func (r result) String() string {
	return fmt.Sprintf("%d committed, %d lost, %d phantoms, %d out of order, %d under another id, %d duplicates", r.Committed, r.Lost, r.Phantoms, r.Disorders, r.IDChanges, r.Duplicates)
}
