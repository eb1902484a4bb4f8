package wayamqp

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/waybill-go/waybill/outbox"
)

// A call is one call of Publish: it answers every item once and cuts the
// connection when its context ends while one is in flight.
type call struct {
	results  chan<- outbox.Result
	open     atomic.Int64 // items without an answer
	flying   atomic.Int64 // of those, how many may have reached the broker
	watching func() bool  // ends the watch over the context
}

func newCall(results chan<- outbox.Result, items int) *call {
	c := &call{results: results, watching: func() bool { return true }}
	c.open.Store(int64(items))
	return c
}

// watch is called before the first answer.
func (c *call) watch(ctx context.Context, l *link) {
	c.watching = context.AfterFunc(ctx, func() {
		if c.flying.Load() > 0 {
			l.cut(l.blamingAlarm(fmt.Errorf("not confirmed in time: %w", ctx.Err())))
		}
	})
}

// done answers an item. With the last one the watch is no longer needed.
func (c *call) done(seq int, err error) {
	if c.open.Add(-1) == 0 {
		c.watching()
	}
	c.results <- outbox.Result{Seq: seq, Err: err}
}

// fail answers items that were not sent.
func (c *call) fail(items []outbox.Item, err error) {
	for _, item := range items {
		c.done(item.Seq, err)
	}
}
