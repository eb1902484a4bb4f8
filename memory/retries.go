package memory

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

var _ worker.Store = (*DB)(nil)

// A DeadLetter is a message that a worker gave up.
type DeadLetter struct {
	Record           *waybill.Record
	Transport        string
	FailureTransport string
	Attempts         []worker.Attempt
	Retrying         bool // a replay is in the retry queue
}

// letterKey identifies a message that failed.
type letterKey struct {
	transport string
	id        waybill.MessageID
}

// retryQueue is a Queue with the operations of worker.RetryQueue.
type retryQueue struct {
	*Queue
	transport string
}

// RetryQueue implements worker.Store.
func (db *DB) RetryQueue(transport string) (worker.RetryQueue, error) {
	return db.retryQueue(transport, defaultLease), nil
}

func (db *DB) retryQueue(transport string, lease time.Duration) *retryQueue {
	return &retryQueue{db.receiver(retriesOf(transport), lease), transport}
}

// retriesOf returns the name of a retry queue, which no other queue has.
func retriesOf(transport string) string { return "retries\x00" + transport }

// Waiting returns how many messages of a transport are in its retry queue.
func (db *DB) Waiting(transport string) int { return db.Queue(retriesOf(transport)).Len() }

// DeadLetters returns the messages that workers moved to a failure transport, oldest
// first.
func (db *DB) DeadLetters(failureTransport string) []DeadLetter {
	db.mu.Lock()
	defer db.mu.Unlock()
	var letters []DeadLetter
	for _, l := range db.letters {
		if l.FailureTransport == failureTransport {
			c := *l
			c.Record, c.Attempts = clone(l.Record), slices.Clone(db.attempts[letterKey{l.Transport, l.Record.ID}])
			letters = append(letters, c)
		}
	}
	return letters
}

// Replay moves the dead letters of a failure transport to their retry queues, to be
// handled again, and returns how many. Each stays a dead letter until it succeeds. A
// message that is in its retry queue already stays as it is there.
func (db *DB) Replay(failureTransport string) (n int) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, l := range db.letters {
		if l.FailureTransport == failureTransport && !l.Retrying {
			l.Retrying = true
			n++
			if q := db.queue(retriesOf(l.Transport)); !q.has(l.Record.ID) {
				db.lastID++
				rec := clone(l.Record)
				rec.Problem = nil // its cause may have been mended
				q.add(db.lastID, rec)
			}
		}
	}
	return n
}

// ReleaseRetries makes the parked messages of a retry queue deliverable, of one key or of
// all if it is empty, and returns how many.
func (db *DB) ReleaseRetries(transport, key string) (n int) {
	db.mu.Lock()
	defer db.mu.Unlock()
	q := db.queue(retriesOf(transport))
	for _, m := range q.messages {
		if (key == "" || m.record.Key == key) && m.until.Equal(never) {
			m.until, m.record.Problem = time.Time{}, nil
			n++
		}
	}
	q.wake()
	return n
}

// never is the time until which a parked message is held.
var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// Contains implements worker.RetryQueue.
func (q *retryQueue) Contains(_ context.Context, ds ...*waybill.Delivery) ([]bool, error) {
	q.db.mu.Lock()
	defer q.db.mu.Unlock()
	contained := make([]bool, len(ds))
	for i, d := range ds {
		contained[i] = slices.ContainsFunc(q.messages, func(m *message) bool {
			return m.record.ID == d.Record.ID || m.record.Key == d.Record.Key && m.record.Key != ""
		})
	}
	return contained, nil
}

// Add implements worker.RetryQueue.
func (q *retryQueue) Add(_ context.Context, moves ...worker.Move) error {
	q.db.mu.Lock()
	defer q.db.mu.Unlock()
	for _, m := range moves {
		rec := clone(m.Delivery.Record)
		if rec.ID.IsZero() {
			id, err := waybill.NewMessageID()
			if err != nil {
				return err
			}
			rec.ID = id
		}
		if q.has(rec.ID) {
			continue
		}
		failures := m.Delivery.Failures
		if m.Attempt != nil {
			failures++
			if !q.noted(rec.ID, m.Attempt) {
				q.note(rec.ID, m.Attempt)
			}
		}
		if m.DeadLetters != "" {
			q.bury(rec, m)
			continue
		}
		q.db.lastID++
		q.add(q.db.lastID, rec)
		added := q.messages[len(q.messages)-1]
		added.failures, added.until = failures, until(m)
	}
	return nil
}

// Move implements worker.RetryQueue.
func (q *retryQueue) Move(_ context.Context, moves ...worker.Move) error {
	ds, byDelivery := make([]*waybill.Delivery, len(moves)), map[*waybill.Delivery]worker.Move{}
	for i, m := range moves {
		ds[i], byDelivery[m.Delivery] = m.Delivery, m
	}
	return q.settle("move", ds, func(held *message, d *waybill.Delivery) {
		m := byDelivery[d]
		if m.Attempt != nil {
			held.failures++
			q.note(held.record.ID, m.Attempt)
		}
		held.record.Headers = clone(d.Record).Headers
		held.crashes = 0
		if m.DeadLetters != "" {
			q.bury(held.record, m)
			q.messages = slices.DeleteFunc(q.messages, func(other *message) bool { return other == held })
			return
		}
		held.until, held.holder = until(m), nil
	})
}

// Retry implements waybill.Receiver. The attempt has no description.
func (q *retryQueue) Retry(ctx context.Context, d *waybill.Delivery, delay time.Duration) error {
	return q.Move(ctx, worker.Move{Delivery: d, Attempt: &worker.Attempt{At: time.Now()}, Delay: delay})
}

// Begin implements worker.RetryQueue.
func (q *retryQueue) Begin(_ context.Context, d *waybill.Delivery) (crashes int, err error) {
	err = q.settle("begin", []*waybill.Delivery{d}, func(m *message, _ *waybill.Delivery) {
		if m.redelivered && m.begun == m.lease-1 {
			m.crashes++
		}
		crashes, m.begun = m.crashes, m.lease
	})
	return crashes, err
}

// Ack implements waybill.Receiver.
func (q *retryQueue) Ack(ctx context.Context, ds ...*waybill.Delivery) error {
	return q.settle("ack", ds, func(m *message, _ *waybill.Delivery) {
		delete(q.db.attempts, letterKey{q.transport, m.record.ID})
		q.db.letters = slices.DeleteFunc(q.db.letters, func(l *DeadLetter) bool { return l.Transport == q.transport && l.Record.ID == m.record.ID })
		q.messages = slices.DeleteFunc(q.messages, func(other *message) bool { return other == m })
	})
}

// has reports whether the queue has a message. The caller holds mu.
func (q *queue) has(id waybill.MessageID) bool {
	return slices.ContainsFunc(q.messages, func(m *message) bool { return m.record.ID == id })
}

// note records an attempt. The caller holds mu.
func (q *retryQueue) note(id waybill.MessageID, a *worker.Attempt) {
	k := letterKey{q.transport, id}
	q.db.attempts[k] = append(q.db.attempts[k], *a)
}

// noted reports whether an attempt is recorded: its message was added before, and the
// answer was lost. The caller holds mu.
func (q *retryQueue) noted(id waybill.MessageID, a *worker.Attempt) bool {
	return slices.ContainsFunc(q.db.attempts[letterKey{q.transport, id}], func(other worker.Attempt) bool { return other.At.Equal(a.At) })
}

// bury makes a dead letter of a message, or changes the one that it has. The caller holds
// mu.
func (q *retryQueue) bury(rec *waybill.Record, m worker.Move) {
	letter := &DeadLetter{Record: rec, Transport: q.transport, FailureTransport: m.DeadLetters}
	i := slices.IndexFunc(q.db.letters, func(l *DeadLetter) bool { return l.Transport == q.transport && l.Record.ID == rec.ID })
	if i >= 0 {
		q.db.letters[i] = letter
	} else {
		q.db.letters = append(q.db.letters, letter)
	}
}

// until returns the end of the time for which a moved message is held.
func until(m worker.Move) time.Time {
	switch {
	case m.Parked:
		return never
	case m.Delay > 0:
		return time.Now().Add(m.Delay)
	}
	return time.Time{}
}
