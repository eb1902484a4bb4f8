package sqlcore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
)

// Held is the column held of a queue's row.
type Held int

// The states of a row. A claim reads claimable rows alone: no other row costs it anything.
const (
	Claimable Held = 0
	InFlight  Held = 1 // leased, or waiting for a retry
	SetAside  Held = 2 // behind a row of its key that is in flight
)

// A QueueRow is a row of a queue without its message.
type QueueRow struct {
	ID   int64
	Key  string
	Held Held
}

// A QueueClaim is the transaction of a claim. It waits for no lock but its turn, so that it
// cannot deadlock with a settling transaction: rows that another transaction has locked
// are left out.
type QueueClaim interface {
	// Read waits until no other claim of the queue is open, makes up to limit rows claimable whose
	// time has come (those without a key count as such unchanged, for Lock and Lease, too), and
	// reads the oldest claimable ones, in any order. Of each key it also reads one row in flight and
	// the oldest rows set aside, up to each; all in one state of the table: rows are settled meanwhile.
	Read(ctx context.Context, limit, each int) ([]QueueRow, error)
	// Lock locks rows until the end of the transaction, and returns their present states.
	// A row that another transaction has locked, or deleted, is not among them.
	Lock(ctx context.Context, ids []int64) (map[int64]Held, error)
	// Set sets locked rows aside, or makes them claimable.
	Set(ctx context.Context, to Held, ids []int64) error
	// Lease leases rows. It leaves out those that are in flight, and those that another
	// transaction has locked or deleted. It is the last call, and may commit.
	Lease(ctx context.Context, ids []int64) ([]*waybill.Delivery, error)
}

// keyShare bounds the rows of one key in a claim of so many: a worker that keeps a tenth of its
// prefetch for a key would release the rest.
func keyShare(limit int) int { return max(limit/10, 1) }

// claimRows leases up to limit rows of the oldest window claimable ones. more is true if
// none was leased and another claim would read different rows.
func claimRows(ctx context.Context, c QueueClaim, limit, window int) (ds []*waybill.Delivery, more bool, err error) {
	rows, err := c.Read(ctx, window, keyShare(limit))
	if err != nil || len(rows) == 0 {
		return nil, false, err
	}
	p := planClaim(rows, limit, window)
	if p.independent() {
		ds, err = c.Lease(ctx, p.rows())
		return ds, false, err
	}
	states, err := c.Lock(ctx, p.rows())
	if err != nil {
		return nil, false, err
	}
	lease, change := p.locked(states)
	for to, ids := range change {
		if err := c.Set(ctx, to, ids); err != nil {
			return nil, false, err
		}
	}
	if len(lease) > 0 {
		ds, err = c.Lease(ctx, lease)
	}
	return ds, len(lease) == 0 && len(change[SetAside]) > 0, err
}

// A claimPlan says what a claim does with the rows that it has read, if it can lock them.
type claimPlan struct {
	lease []QueueRow       // in order
	aside []QueueRow       // rows behind leased ones, or behind a head
	heads map[string]int64 // by key: a row in flight
}

// planClaim decides on the rows that Read has returned. A key with a row in flight is left
// alone. Of another one the oldest rows are leased, up to its share, with those set aside before,
// but none beyond a full window: earlier claimable rows of its key may not have been read.
func planClaim(found []QueueRow, limit, window int) claimPlan {
	p := claimPlan{heads: map[string]int64{}}
	keys := map[string][]QueueRow{}
	slices.SortFunc(found, func(a, b QueueRow) int { return cmp.Compare(a.ID, b.ID) })
	for _, r := range found {
		switch {
		case r.Held == InFlight:
			p.heads[r.Key] = r.ID
		case window > 0:
			keys[r.Key] = append(keys[r.Key], r)
		}
		if r.Held == Claimable {
			window--
		}
	}
	for _, r := range found {
		if r.Held != Claimable {
			continue
		}
		rows := keys[r.Key]
		if r.Key == "" {
			rows = []QueueRow{r}
		}
		delete(keys, r.Key) // the key's later rows are decided on, too
		n := min(keyShare(limit), limit-len(p.lease), len(rows))
		_, busy := p.heads[r.Key]
		if busy {
			n = 0
		}
		p.lease = append(p.lease, rows[:n]...)
		for _, r := range rows[n:] {
			if r.Held == Claimable && (busy || n > 0) {
				p.aside = append(p.aside, r)
			}
		}
	}
	return p
}

// independent reports whether each row can be leased, or not, without regard to others: no
// two are of one key, and none is set aside. Most claims are so, and save locking first.
func (p claimPlan) independent() bool {
	keys := map[string]bool{}
	for _, r := range p.lease {
		if keys[r.Key] {
			return false
		}
		keys[r.Key] = r.Key != ""
	}
	return len(p.aside) == 0 && len(p.heads) == 0
}

// rows returns the rows to lock.
func (p claimPlan) rows() []int64 {
	ids := slices.Collect(maps.Values(p.heads))
	for _, r := range slices.Concat(p.lease, p.aside) {
		ids = append(ids, r.ID)
	}
	return ids
}

// locked returns the rows to lease, and those to change otherwise, given the states of the
// rows that are locked. Rows behind one of their key that is not locked wait: its holder is
// settling it late. Of these one set aside becomes claimable, because that holder did not bring
// back a locked row. A row is set aside only behind a locked row in flight, whose settling then
// brings it back.
func (p claimPlan) locked(states map[int64]Held) (lease []int64, change map[Held][]int64) {
	change = map[Held][]int64{}
	stopped, held := map[string]bool{}, map[string]bool{}
	for _, r := range p.lease {
		state, ok := states[r.ID]
		switch {
		case !ok || state == InFlight:
			stopped[r.Key] = r.Key != ""
		case !stopped[r.Key]:
			lease, held[r.Key] = append(lease, r.ID), true
		case state == SetAside:
			change[Claimable] = append(change[Claimable], r.ID)
		}
	}
	for key, id := range p.heads {
		held[key] = states[id] == InFlight
	}
	for _, r := range p.aside {
		if state, ok := states[r.ID]; ok && state == r.Held && held[r.Key] {
			change[SetAside] = append(change[SetAside], r.ID)
		}
	}
	return lease, change
}

// claimGrace is how much longer than its caller a claim may run that has begun.
const claimGrace = 3 * time.Second

// ClaimContext returns the context of a claim that has begun. It outlives ctx for a
// while: no receiver would have the leased rows until their leases end.
func ClaimContext(ctx context.Context, lease time.Duration) (context.Context, context.CancelFunc) {
	claim, cancel := context.WithTimeout(context.WithoutCancel(ctx), lease)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(claimGrace, cancel) })
	return claim, func() { stop(); cancel() }
}
