package waybill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxBatch bounds the size of a batch.
const maxBatch = 10000

// HandleBatch registers fn for up to size messages at a time, such as for a bulk insert. A
// batch runs when it is full, after wait, which a message waits at most, or when the context of its
// first message ends. The name is
// that of Handle. HandleBatch panics where Handle does, on a size that is not 2 to 10000, and
// on a wait that is not above zero.
//
// The result has an error or nil for each message, in the order of the messages: a message
// with nil has been handled, one with an error is retried alone or with others. A nil result
// means that all have been handled. A panic, and a result of another length, is the error of
// each message.
//
// A batch has messages that are received and handled at the same time in this process: a
// worker fills it if its Concurrency is at least size, else it warns. Messages with one partition key never
// share a batch, so their order holds. Several batches may run at once. A message that is
// dispatched and handled in place runs at once, alone.
//
// The context ends when those of all messages have ended, and is that of no message: DerivedID
// and EnvelopeFrom do not work in fn. As any handler without an inbox it may run again for a
// message that it has handled.
func HandleBatch[M any](b *Bus, name string, size int, wait time.Duration, fn func(ctx context.Context, messages []M) []error) {
	b.refuseNil(name, fn == nil)
	if size < 2 || size > maxBatch || wait <= 0 {
		panic(fmt.Errorf("waybill: bus %s: batch handler %q: a size of %d and a wait of %v: want 2 to %d, and above zero", b.name, name, size, wait, maxBatch))
	}
	g := &batching[M]{name: name, size: size, wait: wait, fn: fn}
	Handle(b, name, func(ctx context.Context, m M) error {
		if _, ok := Last[Received](EnvelopeFrom(ctx)); !ok {
			return g.call(ctx, []M{m})[0]
		}
		batch, i := g.join(ctx, m)
		if i == 0 {
			g.lead(ctx, batch)
		} else {
			<-batch.done
		}
		return batch.errs[i]
	}, HandlerOption{Gathers: size})
}

// batching gathers the messages of one handler.
type batching[M any] struct {
	name string
	size int
	wait time.Duration
	fn   func(ctx context.Context, messages []M) []error

	mu   sync.Mutex
	open *batch[M] // the gathering batch, or nil
}

// A batch gathers, or runs. It is guarded by the mu of its batching while it gathers, then
// only touched by the goroutine of its first message, until done.
type batch[M any] struct {
	messages []M
	contexts []context.Context // of the messages
	errs     []error           // of the messages
	full     chan struct{}     // closed with the last message
	done     chan struct{}     // closed when errs are final
}

// errBatchEnded is the error of all messages whose handler has ended its goroutine.
var errBatchEnded = errors.New("waybill: the handler of the batch ended its goroutine")

// join adds a message to the gathering batch, and returns its index there.
func (g *batching[M]) join(ctx context.Context, m M) (*batch[M], int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		g.open = &batch[M]{full: make(chan struct{}), done: make(chan struct{})}
	}
	b := g.open
	b.messages, b.contexts, b.errs = append(b.messages, m), append(b.contexts, ctx), append(b.errs, errBatchEnded)
	if len(b.messages) == g.size {
		g.open = nil
		close(b.full)
	}
	return b, len(b.messages) - 1
}

// lead waits for the batch to fill, at most for wait or until gathering ends, and runs it.
func (g *batching[M]) lead(gathering context.Context, b *batch[M]) {
	defer close(b.done)
	gathering, stop := context.WithTimeout(gathering, g.wait)
	defer stop()
	select {
	case <-b.full:
	case <-gathering.Done():
		g.mu.Lock()
		if g.open == b {
			g.open = nil
		}
		g.mu.Unlock()
	}
	var live []int
	var messages []M
	for i, ctx := range b.contexts {
		if err := ctx.Err(); err != nil {
			b.errs[i] = err
			continue
		}
		live, messages = append(live, i), append(messages, b.messages[i])
	}
	if len(live) == 0 {
		return
	}
	ctx, cancel := b.context()
	defer cancel()
	for k, err := range g.call(ctx, messages) {
		b.errs[live[k]] = err
	}
}

// call runs the handler, and returns an error or nil for each message.
func (g *batching[M]) call(ctx context.Context, messages []M) []error {
	var results []error
	err := Guard(func() error {
		results = g.fn(ctx, messages)
		return nil
	})
	switch n := len(messages); {
	case err == nil && results == nil:
		return make([]error, n)
	case err == nil && len(results) == n:
		return results
	case err == nil:
		err = fmt.Errorf("waybill: batch handler %q returned %d results for %d messages: return nil, or an error or nil for each", g.name, len(results), n)
	}
	return slices.Repeat([]error{err}, len(messages))
}

// context returns a context without values, which ends when those of all messages have ended.
func (b *batch[M]) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	var left atomic.Int64
	left.Store(int64(len(b.contexts)))
	stops := make([]func() bool, len(b.contexts))
	for i, of := range b.contexts {
		stops[i] = context.AfterFunc(of, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}
