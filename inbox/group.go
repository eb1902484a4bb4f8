package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/crash"
)

// A Grouper is a Store that handles several messages in one transaction.
type Grouper[TX any] interface {
	Store[TX]
	// Inside reports whether ctx is that of a function which InTx runs: whoever
	// holds it must not wait for another transaction.
	Inside(ctx context.Context) bool
	// Part remembers e and runs fn behind a savepoint of tx, which is a transaction
	// of InTx. Not fresh means that e is there already, and fn did not run. What fn
	// returned, or why e cannot be remembered, is failed: then nothing of the part
	// remains, and tx goes on. lost says why tx cannot go on; then InTx must fail.
	// Both say that fn ended tx by itself, and that the parts before it have
	// happened without what they dispatched, or have not happened.
	//
	// fn gets ctx, which may end before the transaction's own. A transaction that
	// was ended under fn may be reported by the next Part or by InTx. Part is not
	// called concurrently for one tx.
	Part(ctx context.Context, tx TX, e Entry, fn func(ctx context.Context) error) (fresh bool, failed, lost error)
}

// maxGroup keeps the savepoints of a group below the 64 of a transaction that
// PostgreSQL has at hand; beyond them every snapshot of the server gets slower.
// It leaves some to the handlers.
const maxGroup = 60

// defaultLinger is how long a message waits for others.
const defaultLinger = 2 * time.Millisecond

// Group has a handler's messages committed up to n at once, in one transaction
// with a savepoint for each: a commit is most of what a small message costs. n is
// 2 to 60; Group panics otherwise. The store must be a Grouper, as all of
// waybill's are; otherwise Handle panics.
//
// A message that fails is rolled back alone and gets its own error; a panic is
// its failure alone, too. When the whole transaction is lost (a deadlock, a lost
// connection, a commit that fails or whose result is unknown) nothing of it is
// acknowledged, and each message is handled again in a transaction of its own,
// so that one cannot take the others along twice. So a handler may run twice for
// one delivery; its first effect was rolled back.
//
// Messages are grouped that are handled at the same time in this process: a
// worker fills a group only if its Concurrency is at least n, and messages with
// one partition key never share one. A group that does not fill costs its
// messages the linger. Several groups may run at once. A message waits for the
// whole group, and holds its locks as long. A handler that ends the transaction
// by a statement (COMMIT, or DDL in MySQL) ends that of its group, and what others
// dispatched in it may be lost: they then get an unrecoverable error that says so.
func Group(n int) Option {
	if n < 2 || n > maxGroup {
		panic(fmt.Sprintf("inbox: a group of %d messages: want 2 to %d", n, maxGroup))
	}
	return Option{group: n}
}

// A member is a message of a group, with its handler.
type member[TX any] struct {
	ctx   context.Context
	entry Entry
	fn    func(ctx context.Context, tx TX) error

	err     error
	settled bool // err is the outcome, whatever becomes of the transaction
	torn    bool // if the effect has happened, what it dispatched was lost
}

// run is the member's part of a transaction. A panic is an error: the goroutine
// is another message's.
func (m *member[TX]) run(ctx context.Context, tx TX) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &waybill.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	if err := m.fn(ctx, tx); err != nil {
		return err
	}
	return ctx.Err() // as InTx does
}

// A batch is a group that gathers, or runs. members is guarded by the grouping's
// mu while it gathers, then only touched by its first member, until done.
type batch[TX any] struct {
	members   []*member[TX]
	full      chan struct{} // closed when no more are taken
	done      chan struct{} // closed when it has ended
	committed bool
}

// A grouping gathers the messages of one handler.
type grouping[TX any] struct {
	store  Grouper[TX]
	size   int
	linger time.Duration

	mu   sync.Mutex
	open *batch[TX] // that gathers, or nil
}

// once is what the function once is, as a member of a group.
func (g *grouping[TX]) once(ctx context.Context, e Entry, fn func(ctx context.Context, tx TX) error) error {
	m := &member[TX]{ctx: ctx, entry: e, fn: fn}
	b, first := g.join(m)
	switch {
	case b == nil:
		return once(ctx, g.store, e, fn)
	case first:
		g.lead(b)
	default:
		<-b.done
	}
	if b.committed || m.settled {
		return m.err
	}
	err := once(ctx, g.store, e, fn)
	if m.torn && errors.Is(err, errDuplicate) {
		return errTorn
	}
	return err
}

// errTorn is an alert. It comes once: the next delivery is a duplicate.
var errTorn = waybill.Unrecoverable(errors.New("inbox: another handler of the group committed the transaction by a statement of its own: this message's effect has happened, and what it dispatched was not sent"))

// join returns the batch that m is in, and whether m is the first. It is none for
// what would wait for itself: inside a transaction of the store, or behind the
// same entry.
func (g *grouping[TX]) join(m *member[TX]) (b *batch[TX], first bool) {
	if g.store.Inside(m.ctx) {
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

// lead waits for b to fill, at most for the linger, and runs it.
func (g *grouping[TX]) lead(b *batch[TX]) {
	defer close(b.done)
	timer := time.NewTimer(g.linger)
	defer timer.Stop()
	select {
	case <-b.full:
	case <-timer.C:
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

// run handles all members in one transaction. Of a transaction that fails only
// what failed in it, or was there before, is settled.
func (b *batch[TX]) run(store Grouper[TX]) {
	ctx, cancel := b.context()
	defer cancel()
	err := store.InTx(ctx, func(ctx context.Context, tx TX) error {
		for i, m := range b.members {
			if m.err = m.ctx.Err(); m.err != nil {
				m.settled = true
				continue
			}
			fresh, failed, lost := store.Part(m.ctx, tx, m.entry, func(ctx context.Context) error { return m.run(ctx, tx) })
			if failed != nil && lost != nil {
				for _, before := range b.members[:i] {
					before.torn = true
				}
			}
			switch {
			case failed != nil:
				m.err, m.settled = failed, true
			case lost == nil && !fresh:
				m.err, m.settled = errDuplicate, true
			}
			if lost != nil {
				return lost
			}
		}
		crash.At(crash.WorkerBeforeCommit)
		return nil
	})
	b.committed = err == nil
}

// context returns one without values, which ends when those of all members have:
// one message that is given up does not end the others' transaction.
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
