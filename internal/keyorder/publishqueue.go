// Package keyorder keeps the order of each partition key: PublishQueue in a relay,
// HandleQueue in a worker. It is pure: it neither waits nor sends, so that relay,
// worker and their simulation take the same decisions.
package keyorder

import (
	"errors"

	"github.com/waybill-go/waybill"
)

// A PublishQueue schedules the records of a batch, in commit order: with strict order at most
// one record of a key is unconfirmed, and all keys are published in parallel. Records
// are identified by their index. It is not safe for concurrent use.
type PublishQueue struct {
	records []*waybill.Record
	next    []int // the following record of the same key, or -1
	// stream is nil in strict order. Otherwise a record may be published together
	// with the one before it in its key, if both have the same stream.
	stream func(*waybill.Record) string
	stuck  map[string]bool // with stream: keys with a refused record, which hold back their next ones
	ready  []int           // may be published, oldest first
	open   int             // number of records in flight
	out    bool            // no more records are taken
	state  []State
	errs   []error
}

// State is the state of a record.
type State uint8

const (
	Waiting  State = iota
	InFlight       // taken, and not answered yet
	Published
	Refused
	Unknown // the broker could not be reached, or did not answer
)

// NewPublishQueue returns a queue of records. With atomic the publisher keeps the order inside one
// batch, so all are ready at once, except records behind an unreadable one of their key.
func NewPublishQueue(records []*waybill.Record, atomic bool) *PublishQueue {
	n := len(records)
	q := &PublishQueue{records: records, next: make([]int, n), state: make([]State, n), stuck: map[string]bool{}, errs: make([]error, n), ready: make([]int, 0, n)}
	last := make(map[string]int)
	stays := make([]bool, n)
	for i, rec := range records {
		q.next[i] = -1
		before, follows := last[rec.Key]
		follows = follows && rec.Key != ""
		last[rec.Key] = i
		switch {
		case follows && atomic && stays[before]:
			stays[i] = true
		case follows && !atomic:
			q.next[before] = i
		case rec.Problem != nil:
			stays[i] = true
			q.Reject(i, rec.Problem)
		default:
			q.ready = append(q.ready, i)
		}
	}
	return q
}

// Pipeline lets consecutive records of a key be unconfirmed together if they have the
// same stream. It is called before Take.
func (q *PublishQueue) Pipeline(stream func(*waybill.Record) string) { q.stream = stream }

// Take appends up to max records to publish now, in order and in one call.
func (q *PublishQueue) Take(max int, into []int) []int {
	if q.out {
		return into
	}
	first, n := len(into), min(max, len(q.ready))
	for _, i := range q.ready[:n] {
		into = q.send(i, into)
	}
	q.ready = q.ready[n:]
	if q.stream == nil {
		return into
	}
	// The next record of a key goes in the same call, or after the confirmation: a
	// later call may use another connection, on which it could arrive first.
	for at := first; at < len(into) && len(into)-first < max; at++ {
		if i := into[at]; q.followsAtOnce(i) {
			into = q.send(q.next[i], into)
		}
	}
	return into
}

func (q *PublishQueue) send(i int, into []int) []int {
	q.state[i] = InFlight
	q.open++
	return append(into, i)
}

// followsAtOnce reports whether the next record of i's key may be taken in the
// same call as i.
func (q *PublishQueue) followsAtOnce(i int) bool {
	next := q.next[i]
	return next >= 0 && q.records[next].Problem == nil && q.stream(q.records[i]) == q.stream(q.records[next])
}

// Done records the result of record i. A success makes the key's next record ready; a
// refusal holds back the rest of the key; an outage (waybill.ErrUnavailable) holds back
// all other records, too. A second result of a record is ignored.
func (q *PublishQueue) Done(i int, err error) {
	if i < 0 || i >= len(q.records) || q.state[i] != InFlight {
		return // not in flight
	}
	q.open--
	switch {
	case err == nil:
		q.state[i] = Published
		switch next := q.next[i]; {
		case next < 0 || q.state[next] != Waiting || q.stuck[q.records[next].Key]:
		case q.records[next].Problem != nil:
			q.Reject(next, q.records[next].Problem)
		default:
			q.ready = append(q.ready, next)
		}
	case errors.Is(err, waybill.ErrUnavailable):
		q.state[i], q.errs[i] = Unknown, err
		q.out = true
	default:
		q.state[i], q.errs[i] = Refused, err
		if key := q.records[i].Key; q.stream != nil && key != "" {
			q.stuck[key] = true
		}
	}
}

// Open returns the number of records in flight.
func (q *PublishQueue) Open() int { return q.open }

// Stop makes Take return no more records, until Resume.
func (q *PublishQueue) Stop() { q.out = true }

// Resume lets Take return records again, after an outage that is over.
func (q *PublishQueue) Resume() { q.out = false }

// Abandon stops, and makes err the result of every record in flight.
func (q *PublishQueue) Abandon(err error) {
	q.out = true
	for i, s := range q.state {
		if s == InFlight {
			q.state[i], q.errs[i] = Unknown, err
		}
	}
}

// Outcome returns the state of a record, and the error if it is Refused or Unknown.
func (q *PublishQueue) Outcome(i int) (State, error) { return q.state[i], q.errs[i] }

// Outage returns the error of the first record with state Unknown, or nil.
func (q *PublishQueue) Outage() error {
	for i, s := range q.state {
		if s == Unknown {
			return q.errs[i]
		}
	}
	return nil
}

// Reject makes record i, which is not in flight, Refused with err.
func (q *PublishQueue) Reject(i int, err error) { q.state[i], q.errs[i] = Refused, err }
