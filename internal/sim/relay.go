package sim

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/chain"
	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/outbox"
)

const (
	batch           = 12
	window          = 4
	publishDeadline = 10 * time.Second
)

// relay begins a relay with two workers.
func (w *world) relay(name string) {
	w.begin(name, func(p *process) {
		l := lane.New(1, buckets)
		link := p.broker.link(p)
		for range 2 {
			p.thread(func(th *thread) {
				r := &relaying{thread: th, lane: l, link: link}
				for {
					if r.release()+r.pass() == 0 {
						th.sleep(th.between(5*time.Millisecond, 2*time.Second))
					}
				}
			})
		}
	})
}

// relaying is one worker of a relay.
type relaying struct {
	*thread
	lane   *lane.Lane
	link   *link
	looked time.Duration // for released keys, last
}

// pass claims, publishes and settles one batch, and returns how many rows it had.
func (r *relaying) pass() int {
	r.link.connect(r.thread)
	t := r.db.begin(r.process)
	t.idle()
	b := lane.NewBatch(r.lane)
	if !r.claim(t, b) {
		r.lane.Forget()
		t.rollback(r.thread, "claim rollback")
		return 0
	}
	if len(b.Rows) == 0 {
		t.rollback(r.thread, "claim rollback")
		return 0
	}
	if r.mutant == MarkBeforeCommit {
		b.Settled(nil)
	}
	if r.mutant == DeleteBeforeConfirm {
		r.settle(t, b, func(int) (chain.State, error) { return chain.Published, nil })
		r.publish(b.Rows)
		return len(b.Rows)
	}
	c := r.publish(b.Rows)
	r.settle(t, b, c.Outcome)
	return len(b.Rows)
}

// claim locks buckets and reads them in a later statement.
func (r *relaying) claim(t *tx, b *lane.Batch) bool {
	var snapshot []*row
	var locked []int16
	r.step("claim")
	// A statement's snapshot is older than the locks it gets.
	r.request("claim snapshot", func(reply func()) { snapshot = r.db.visible(); reply() })
	if !t.do(r.thread, "claim lock", func() {
		for i := range int16(buckets) {
			bucket := (i + int16(b.View.Turn)) % buckets
			if r.db.claimed[bucket] == nil && len(locked) < 2 {
				r.db.claimed[bucket] = t
				locked = append(locked, bucket)
				t.onEnd = append(t.onEnd, func() { r.db.claimed[bucket] = nil })
			}
		}
		b.State = r.db.state()
	}) {
		return false
	}
	if !r.lane.Serves(b.View, "1") {
		return false
	}
	var found []lane.Row
	from := b.From(locked)
	if !t.do(r.thread, "claim read", func() {
		rows := r.db.visible()
		if r.mutant == LockAndReadAtOnce {
			rows = snapshot
		}
		if b.State.Version != r.db.version {
			locked = nil // what waits has changed: another claim
			return
		}
		at := b.State.Now.Sub(epoch)
		if r.mutant == TwoClocks {
			at = r.now
		}
		for i, bucket := range locked {
			found = append(found, r.db.read(rows, bucket, from[i], at, batch/2)...)
		}
	}) {
		return false
	}
	if len(locked) > 0 {
		b.Take(found)
	}
	if len(b.Rows) > 0 {
		ids := make([]int64, len(b.Rows))
		for i, row := range b.Rows {
			ids[i] = row.ID
		}
		r.trace("%s: buckets %v from %v: rows %v", r.name, locked, from, ids)
	}
	return true
}

// epoch makes the simulation's time one of the calendar.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// state is what waits, as a claim reads it.
func (db *database) state() lane.State {
	s := lane.State{Version: db.version, Any: len(db.blocked) > 0, Now: epoch.Add(db.now), Next: map[int16]time.Time{}}
	for key := range keys {
		if b := db.blocked[key]; b != nil && b.until > db.now {
			bucket := int16(key % buckets)
			if next, ok := s.Next[bucket]; !ok || epoch.Add(b.until).Before(next) {
				s.Next[bucket] = epoch.Add(b.until)
			}
		}
	}
	return s
}

// read returns the oldest rows of a bucket whose keys do not wait at a time, or
// its last id.
func (db *database) read(rows []*row, bucket int16, from int64, at time.Duration, limit int) (found []lane.Row) {
	var last *int64
	for _, r := range rows {
		if r.bucket != bucket || r.id <= from {
			continue
		}
		last = &r.id
		blocked := db.blocked[r.message.key]
		if len(found) == limit || blocked != nil && blocked.until > at {
			continue
		}
		f := lane.Row{Bucket: bucket, Claimed: r.message.claimed(r.id), Headers: "{}"}
		if blocked != nil {
			f.Claimed.Failures, f.KeyBlocked = blocked.failures, true
		}
		found = append(found, f)
	}
	if len(found) == 0 {
		return []lane.Row{{Bucket: bucket, Last: last, None: true}}
	}
	return found
}

// publish sends what the chains hand out until each is answered.
func (r *relaying) publish(rows []outbox.ClaimedRow) *chain.Chains {
	records := make([]*waybill.Record, len(rows))
	for i, row := range rows {
		records[i] = row.Record
	}
	c := chain.New(records, false, nil)
	if r.mutant == TwoInFlight {
		c.Pipeline(func(rec *waybill.Record) string { return "" })
	}
	p := &publishing{thread: r.thread, link: r.link, chains: c, deadline: r.now + publishDeadline}
	r.after(publishDeadline, p.late)
	for {
		if r.now > p.deadline-publishDeadline/2 {
			c.Stop()
		}
		for _, i := range c.Take(window-c.Open(), nil) {
			r.step("publish")
			no, _ := strconv.Atoi(records[i].Name)
			r.link.publish(p, i, r.laws.messages[no])
		}
		if c.Open() == 0 {
			return c
		}
		if len(p.answers) == 0 { // none came while something was sent
			p.waits = true
			r.wait()
		}
		for _, answer := range p.answers {
			c.Done(answer.i, answer.err)
		}
		p.answers = nil
	}
}

// settle deletes what was published, blocks what was refused, and commits.
func (r *relaying) settle(t *tx, b *lane.Batch, outcome func(i int) (chain.State, error)) {
	left := b.Left()
	ok := t.do(r.thread, "settle delete", func() {
		for i, claimed := range b.Rows {
			state, _ := outcome(i)
			at, _ := slices.BinarySearchFunc(r.db.rows, claimed.ID, func(row *row, id int64) int { return int(row.id - id) })
			if at == len(r.db.rows) || r.db.rows[at].id != claimed.ID {
				delete(left, claimed.ID) // gone already
				continue
			}
			row := r.db.rows[at]
			switch state {
			case chain.Published:
				delete(left, claimed.ID)
				t.onCommit = append(t.onCommit, func() {
					row.gone = true
					if b.Origin(i).KeyBlocked {
						delete(r.db.blocked, row.message.key)
						r.db.version++
					}
				})
			case chain.Refused:
				t.onCommit = append(t.onCommit, func() { r.db.refused(row.message.key) })
			}
		}
	})
	if !ok || !t.commit(r.thread, "settle commit") {
		r.lane.Forget()
		return
	}
	r.step("settled")
	if r.mutant != MarkBeforeCommit {
		b.Settled(left)
	}
}

// claimed is m as a relay has it.
func (m *message) claimed(id int64) outbox.ClaimedRow {
	return outbox.ClaimedRow{ID: id, Record: &waybill.Record{Name: strconv.Itoa(m.no), Key: "k" + strconv.Itoa(m.key)}}
}

// An answer is the broker's to one record.
type answer struct {
	i   int
	err error
}

// publishing is a batch on its way.
type publishing struct {
	*thread
	link     *link
	chains   *chain.Chains
	deadline time.Duration
	answers  []answer
	waits    bool
}

// late cuts the connection at the deadline, or when the process is frozen no more.
func (p *publishing) late() {
	switch {
	case p.dead || p.chains.Open() == 0:
	case p.frozen > p.now:
		p.after(p.frozen-p.now, p.late)
	default:
		p.link.cut()
	}
}

// answered is called when an answer arrives, or will not.
func (p *publishing) answered(i int, err error) {
	p.answers = append(p.answers, answer{i, err})
	if p.waits {
		p.waits = false
		p.after(0, p.resume)
	}
}

var errCut = fmt.Errorf("%w: the connection is cut", waybill.ErrUnavailable)
