package sim

import (
	"strconv"
	"time"

	"github.com/waybill-go/waybill/internal/keyorder"
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
		r.settle(t, b, func(int) (keyorder.State, error) { return keyorder.Published, nil })
		r.publish(b.Rows)
		return true
	}
	r.settle(t, b, r.publish(b.Rows).Outcome)
	return true
}

// settle deletes the published rows, blocks the keys of refused heads, and commits.
func (r *relaying) settle(t *tx, b *readpos.Batch, outcome func(i int) (keyorder.State, error)) {
	var published []outbox.ClaimedRow
	ok := t.do(r.thread, "settle delete", func() {
		for i, claimed := range b.Rows {
			row := r.db.row(claimed.ID)
			switch state, _ := outcome(i); {
			case row == nil: // gone already
			case state == keyorder.Published:
				published = append(published, claimed)
				t.onCommit = append(t.onCommit, func() { row.gone = true })
			case state == keyorder.Refused:
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
func (r *relaying) settleRetries(t *tx, rows []outbox.ClaimedRow, outcome func(i int) (keyorder.State, error)) {
	for bucket := range int16(buckets) {
		for i, row := range rows {
			state, _ := outcome(i)
			if key := r.keyOf(row); home(key) == bucket && (state == keyorder.Published || state == keyorder.Refused && attempts(key) > 0) {
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
			case keyorder.Published:
				t.onCommit = append(t.onCommit, func() {
					row.gone = true
					r.db.unblock(key)
				})
			case keyorder.Refused:
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
