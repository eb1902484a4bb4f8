package waycli

import (
	"context"
	"sync/atomic"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

// counts is an observer that counts by transport.
type counts struct {
	transports map[string]*transportCounts // never changed once made
}

type transportCounts struct {
	published, refused atomic.Int64 // by a relay
	handled, failed    atomic.Int64 // by a worker
	duplicates         atomic.Int64 // handlers that had handled a message before
}

func newCounts(transports ...string) *counts {
	c := &counts{transports: map[string]*transportCounts{}}
	for _, name := range transports {
		c.transports[name] = &transportCounts{}
	}
	return c
}

func (c *counts) of(transport string) *transportCounts { return c.transports[transport] }

// Observe implements waybill.Observer.
func (c *counts) Observe(_ context.Context, e waybill.Event) {
	n := c.of(e.Transport)
	if n == nil {
		return
	}
	switch e.Kind {
	case waybill.Published:
		n.published.Add(1)
	case waybill.PublishFailed:
		n.refused.Add(1)
	case waybill.Duplicate:
		n.duplicates.Add(1)
	case waybill.Handled:
		switch {
		case e.Err == nil:
			n.handled.Add(1)
		case worker.Failed(e.Err):
			n.failed.Add(1)
		}
	}
}

// totals are the counts of all transports.
type totals struct{ published, refused, handled, failed, duplicates int }

func (c *counts) total() (t totals) {
	for _, n := range c.transports {
		t.published += int(n.published.Load())
		t.refused += int(n.refused.Load())
		t.handled += int(n.handled.Load())
		t.failed += int(n.failed.Load())
		t.duplicates += int(n.duplicates.Load())
	}
	return t
}
