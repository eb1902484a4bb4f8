package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/crash"
)

// maxGroup keeps the savepoints of a group below the 64 that PostgreSQL caches for a
// transaction; beyond them every snapshot of the server gets slower. The rest is for
// the handlers' savepoints.
const maxGroup = 60

// defaultLinger is the Linger of a Group without one.
const defaultLinger = 2 * time.Millisecond

// Group commits up to n messages of a handler in one transaction, with a savepoint
// for each: a commit is most of the cost of a small message. n is 2 to 60; Group
// panics otherwise.
//
// A message that fails or panics is rolled back alone and gets its own error. When
// the whole transaction is lost (a deadlock, a lost connection, a commit that fails
// or whose result is unknown) none of its messages is acknowledged, and each is
// handled again in a separate transaction, so that one message cannot fail the group
// twice. So a handler may run twice for one delivery; its first effect was rolled
// back.
//
// A group consists of messages that are handled at the same time in this process: a
// worker fills a group only if its Concurrency is at least n, else it warns, and messages
// with one partition key never share one. A group that does not fill costs its messages the
// linger. Several groups may run at once. A message waits for the whole group, and
// holds its locks as long. A handler that ends the transaction by a statement (COMMIT,
// or DDL in MySQL) ends that of its group, and dispatches of the other messages in it
// may be lost: these then get an unrecoverable error that says so.
func Group(n int) Option {
	if n < 2 || n > maxGroup {
		panic(fmt.Errorf("inbox: a group of %d messages: want 2 to %d", n, maxGroup))
	}
	return Option{group: n}
}

// A member is a message of a group, with its handler.
type member[TX any] struct {
	ctx   context.Context
	entry Entry
	fn    func(ctx context.Context, tx TX) error

	err     error
	settled bool // err is the outcome, also if the transaction is lost
	torn    bool // if the effect was committed, its dispatches were lost
}

// run runs the member's handler in the group's transaction. A panic becomes an error:
// the goroutine belongs to another message.
func (m *member[TX]) run(ctx context.Context, tx TX) error {
	if err := waybill.Guard(func() error { return m.fn(ctx, tx) }); err != nil {
		return err
	}
	return ctx.Err() // as InTx does
}

// A batch is a group that gathers, or runs. members is guarded by the grouping's
// mu while it gathers, then only touched by its first member, until done.
type batch[TX any] struct {
	members   []*member[TX]
	full      chan struct{} // closed when it has size members
	done      chan struct{} // closed when it has ended
	committed bool
}

// A grouping gathers the messages of one handler.
type grouping[TX any] struct {
	store  Store[TX]
	size   int
	linger time.Duration

	mu   sync.Mutex
	open *batch[TX] // the gathering batch, or nil
}

// once runs fn exactly once per entry, batched with other messages.
func (g *grouping[TX]) once(ctx context.Context, e Entry, fn func(ctx context.Context, tx TX) error) error {
	m := &member[TX]{ctx: ctx, entry: e, fn: fn}
	b, first := g.join(m)
	switch {
	case b == nil:
		return once(ctx, g.store, e, fn)
	case first:
		g.lead(ctx, b)
	default:
		<-b.done
	}
	if b.committed || m.settled {
		return m.err
	}
	if err := ctx.Err(); err != nil && !m.torn {
		return err // to begin would report a deadline as an outage
	}
	err := once(ctx, g.store, e, fn)
	if m.torn && errors.Is(err, waybill.ErrDuplicate) {
		return errTorn
	}
	return err
}

// errTorn needs an operator. It is returned once: the next delivery is a duplicate.
var errTorn = waybill.Unrecoverable(errors.New("inbox: another handler of the group committed the transaction by a statement of its own: this message's effect has happened, and what it dispatched was not sent"))

// join adds m to the gathering batch and reports whether it is the first member. The
// batch is nil if m would wait for itself: inside a transaction of the store, or behind
// a member with the same dedup key.
func (g *grouping[TX]) join(m *member[TX]) (b *batch[TX], first bool) {
	if g.store.InTransaction(m.ctx) {
		return nil, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		g.open = &batch[TX]{full: make(chan struct{}), done: make(chan struct{})}
	}
	b = g.open
	for _, other := range b.members {
		if other.entry.DedupKey == m.entry.DedupKey {
			return nil, false
		}
	}
	if b.members = append(b.members, m); len(b.members) == g.size {
		g.open = nil
		close(b.full)
	}
	return b, len(b.members) == 1
}

// lead waits for b to fill, at most for the linger or until ctx ends, and runs it. A single
// member is left to once.
func (g *grouping[TX]) lead(ctx context.Context, b *batch[TX]) {
	defer close(b.done)
	ctx, cancel := context.WithTimeout(ctx, g.linger)
	defer cancel()
	select {
	case <-b.full:
	case <-ctx.Done():
		g.mu.Lock()
		if g.open == b {
			g.open = nil
		}
		g.mu.Unlock()
	}
	if len(b.members) > 1 {
		b.run(g.store)
	}
}

// run handles all members in one transaction. If that fails, only failed members and
// duplicates are settled.
func (b *batch[TX]) run(store Store[TX]) {
	ctx, cancel := b.context()
	defer cancel()
	contexts := make([]context.Context, len(b.members))
	for i, m := range b.members {
		contexts[i] = m.ctx
	}
	from, _ := waybill.Last[waybill.Received](waybill.EnvelopeFrom(contexts[0]))
	end := waybill.ReportGroup(from.Transport, contexts)
	err := store.InTx(ctx, func(ctx context.Context, tx TX) error {
		for i, m := range b.members {
			if m.err = m.ctx.Err(); m.err != nil {
				m.settled = true
				continue
			}
			fresh, failed, lost := store.RunInSavepoint(m.ctx, tx, m.entry, func(ctx context.Context) error { return m.run(ctx, tx) })
			if failed != nil && lost != nil {
				for _, before := range b.members[:i] {
					before.torn = true
				}
			}
			switch {
			case failed != nil:
				m.err, m.settled = failed, true
			case lost != nil && m.ctx.Err() != nil: // it may have cut a statement off: that is no outage
				m.err, m.settled = m.ctx.Err(), true
			case lost == nil && !fresh:
				m.err, m.settled = waybill.ErrDuplicate, true
			}
			if lost != nil {
				return lost
			}
		}
		crash.At(crash.WorkerBeforeCommit)
		return nil
	})
	end(err)
	b.committed = err == nil
}

// context returns a context without values, which ends when the contexts of all
// members have ended: one cancelled message does not end the transaction of the group.
func (b *batch[TX]) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	var left atomic.Int64
	left.Store(int64(len(b.members)))
	stops := make([]func() bool, len(b.members))
	for i, m := range b.members {
		stops[i] = context.AfterFunc(m.ctx, func() {
			if left.Add(-1) == 0 {
				cancel(errAllEnded)
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

var errAllEnded = errors.New("inbox: the contexts of all messages of the group have ended")
