package sim

import (
	"fmt"
	"strconv"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/chain"
	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/outbox"
)

const (
	batch           = 12
	perBucket       = batch / 4 // small, so that one key fills it now and then
	window          = 4
	publishDeadline = 10 * time.Second
)

// relay starts a relay: two workers for keyed messages, and one for retries on a
// separate connection.
func (w *world) relay(name string) {
	w.begin(name, func(p *process) {
		positions := readpos.New(1, buckets)
		positions.Margin = 0 // it would hide marks that move too early
		main, apart := p.broker.link(p), p.broker.link(p)
		work := func(to *link, pass func(r *relaying) bool) {
			p.thread(func(th *thread) {
				r := &relaying{thread: th, positions: positions, link: to}
				for {
					if !pass(r) {
						th.sleep(th.between(5*time.Millisecond, 2*time.Second))
					}
				}
			})
		}
		for range 2 {
			work(main, (*relaying).keyed)
		}
		work(apart, (*relaying).retries)
	})
}

// relaying is one worker of a relay.
type relaying struct {
	*thread
	positions *readpos.Positions
	link      *link
}

// keyed claims, publishes and settles one batch of keyed messages, and reports whether
// there may be more.
func (r *relaying) keyed() (more bool) {
	r.link.connect(r.thread)
	t := r.db.begin(r.process)
	t.idle()
	b := readpos.NewBatch(r.positions)
	again, ok := r.claim(t, b)
	if !ok {
		r.positions.Reset()
	}
	if !ok || len(b.Rows) == 0 {
		t.rollback(r.thread, "claim rollback")
		return again
	}
	if r.mutant == MarkBeforeCommit {
		b.Settled(b.Rows)
	}
	if r.mutant == DeleteBeforeConfirm {
		r.settle(t, b, func(int) (chain.State, error) { return chain.Published, nil })
		r.publish(b.Rows)
		return true
	}
	r.settle(t, b, r.publish(b.Rows).Outcome)
	return true
}

// claim locks buckets, reads their state in a later statement and their rows in the
// next.
func (r *relaying) claim(t *tx, b *readpos.Batch) (again, ok bool) {
	var snapshot, early []*row
	var versions [buckets]int64
	r.step("claim")
	// A statement's snapshot is older than the locks it gets.
	r.request("claim snapshot", func(reply func()) {
		snapshot, versions = r.db.visible(), r.db.versions
		early = r.db.publishable(snapshot)
		reply()
	})
	var locked []readpos.Bucket
	if !t.do(r.thread, "claim lock", func() {
		for i := range int16(buckets) {
			bucket := (i + int16(b.View.Turn)) % buckets
			if g := &r.db.claims[bucket]; g.holder == nil && len(locked) < 2 {
				r.db.lock(t, g, func() {})
				locked = append(locked, readpos.Bucket{Number: bucket})
			}
		}
	}) || !r.positions.ValidFor(b.View, "1", 0) {
		return false, false
	}
	if !t.do(r.thread, "claim state", func() {
		for i, at := range locked {
			locked[i].Version, locked[i].Blocked = r.db.versions[at.Number], r.db.anyBlocked(at.Number)
			if r.mutant == VersionBeforeLock {
				locked[i].Version = versions[at.Number]
			}
		}
	}) {
		return false, false
	}
	var found []readpos.Row
	reads := b.Reads(locked, readpos.Routes{})
	if !t.do(r.thread, "claim read", func() {
		all := r.db.visible()
		rows := r.db.publishable(all)
		if r.mutant == LockAndReadAtOnce {
			all, rows = snapshot, early
		}
		for _, read := range reads {
			found = append(found, inBucket(all, rows, read)...)
		}
	}) {
		return false, false
	}
	again = b.Take(found, perBucket)
	if len(b.Rows) > 0 {
		ids := make([]int64, len(b.Rows))
		for i, row := range b.Rows {
			ids[i] = row.ID
		}
		r.trace("%s: reads %+v: rows %v", r.name, reads, ids)
	}
	return again, true
}

func (db *database) anyBlocked(bucket int16) bool {
	for key := range db.blocked {
		if home(key) == bucket {
			return true
		}
	}
	return false
}

// publishable returns the rows whose keys are not blocked.
func (db *database) publishable(rows []*row) (free []*row) {
	for _, r := range rows {
		if db.blocked[r.message.key] == nil {
			free = append(free, r)
		}
	}
	return free
}

// inBucket returns the oldest publishable rows of a bucket, or its last id.
func inBucket(all, publishable []*row, read readpos.Read) (found []readpos.Row) {
	in := func(r *row) bool { return r.bucket == read.Bucket && r.id > read.After }
	for _, r := range publishable {
		claimed := r.message.claimed(r.id)
		if in(r) && claimed.Record.Key != read.Skip && len(found) < perBucket {
			found = append(found, readpos.Row{Bucket: read.Bucket, Claimed: claimed, Headers: "{}"})
		}
	}
	if len(found) > 0 {
		return found
	}
	var last *int64
	for _, r := range all {
		if in(r) {
			last = &r.id
		}
	}
	return []readpos.Row{{Bucket: read.Bucket, Last: last, None: true}}
}

// publish sends the records of rows, as chains hand them out, until each is answered.
func (r *relaying) publish(rows []outbox.ClaimedRow) *chain.Chains {
	records := make([]*waybill.Record, len(rows))
	for i, row := range rows {
		records[i] = row.Record
	}
	c := chain.New(records, false)
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
		if len(p.answers) == 0 { // no answer arrived while sending
			p.waits = true
			r.wait()
		}
		for _, answer := range p.answers {
			c.Done(answer.i, answer.err)
		}
		p.answers = nil
	}
}

// settle deletes the published rows, blocks the keys of refused heads, and commits.
func (r *relaying) settle(t *tx, b *readpos.Batch, outcome func(i int) (chain.State, error)) {
	var published []outbox.ClaimedRow
	ok := t.do(r.thread, "settle delete", func() {
		for i, claimed := range b.Rows {
			row := r.db.row(claimed.ID)
			switch state, _ := outcome(i); {
			case row == nil: // gone already
			case state == chain.Published:
				published = append(published, claimed)
				t.onCommit = append(t.onCommit, func() { row.gone = true })
			case state == chain.Refused:
				t.onCommit = append(t.onCommit, func() { r.db.block(row) })
			}
		}
	})
	if !ok || !t.commit(r.thread, "settle commit") {
		r.positions.Reset()
		return
	}
	r.step("settled")
	if r.mutant != MarkBeforeCommit {
		b.Settled(published)
	}
}

// retries claims, publishes and settles the heads of blocked keys, and reports whether
// any was due. The lock of an entry reserves its head: claims of keyed messages skip
// its key.
func (r *relaying) retries() (any bool) {
	if len(r.db.due()) == 0 {
		return false
	}
	r.link.connect(r.thread)
	t := r.db.begin(r.process)
	t.idle()
	var rows []outbox.ClaimedRow
	if !t.do(r.thread, "retry claim", func() {
		for _, key := range r.db.due() {
			b := r.db.blocked[key]
			if r.mutant != RetryWithoutEntryLock {
				if b.retrying != nil {
					continue
				}
				b.retrying = t
				t.onEnd = append(t.onEnd, func() { b.retrying = nil })
			}
			rows = append(rows, b.head.message.claimed(b.head.id))
		}
	}) || len(rows) == 0 {
		t.rollback(r.thread, "claim rollback")
		return false
	}
	r.settleRetries(t, rows, r.publish(rows).Outcome)
	return true
}

// settleRetries deletes the published heads with their entries, and counts the refusals
// of the others. It first locks, in order, the buckets of published heads and of keys
// that may be parked.
func (r *relaying) settleRetries(t *tx, rows []outbox.ClaimedRow, outcome func(i int) (chain.State, error)) {
	for bucket := range int16(buckets) {
		for i, row := range rows {
			state, _ := outcome(i)
			if key := r.keyOf(row); home(key) == bucket && (state == chain.Published || state == chain.Refused && attempts(key) > 0) {
				r.request("settle lock", func(reply func()) { r.db.lock(t, &r.db.claims[bucket], reply) })
				break
			}
		}
	}
	t.do(r.thread, "settle retries", func() {
		for i, claimed := range rows {
			state, _ := outcome(i)
			key, row := r.keyOf(claimed), r.db.row(claimed.ID)
			if row == nil || r.db.blocked[key] == nil {
				continue
			}
			switch state {
			case chain.Published:
				t.onCommit = append(t.onCommit, func() {
					row.gone = true
					r.db.unblock(key)
				})
			case chain.Refused:
				t.onCommit = append(t.onCommit, func() {
					if r.db.blocked[key] != nil {
						r.db.block(row)
					}
				})
			}
		}
	})
	t.commit(r.thread, "settle commit")
}

func (r *relaying) keyOf(row outbox.ClaimedRow) int {
	no, _ := strconv.Atoi(row.Record.Name)
	return r.laws.messages[no].key
}

// row returns the row with an id, or nil.
func (db *database) row(id int64) *row {
	for _, r := range db.rows {
		if r.id == id && !r.gone {
			return r
		}
	}
	return nil
}

// claimed returns m as a claimed row.
func (m *message) claimed(id int64) outbox.ClaimedRow {
	return outbox.ClaimedRow{ID: id, Record: &waybill.Record{Name: strconv.Itoa(m.no), Key: "k" + strconv.Itoa(m.key)}}
}

// An answer is the result of one record.
type answer struct {
	i   int
	err error
}

// publishing is a batch in the course of publishing.
type publishing struct {
	*thread
	link     *link
	chains   *chain.Chains
	deadline time.Duration
	answers  []answer
	waits    bool
}

// late cuts the connection at the deadline, or once the process is no longer frozen.
func (p *publishing) late() {
	switch {
	case p.dead || p.chains.Open() == 0:
	case p.frozen > p.now:
		p.after(p.frozen-p.now, p.late)
	default:
		p.link.cut()
	}
}

// answered is called with the broker's answer, or with errCut if there will be none.
func (p *publishing) answered(i int, err error) {
	p.answers = append(p.answers, answer{i, err})
	if p.waits {
		p.waits = false
		p.after(0, p.resume)
	}
}

var errCut = fmt.Errorf("%w: the connection is cut", waybill.ErrUnavailable)
