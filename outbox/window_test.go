package outbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waytest"
)

// forgetful is a store whose Settle fails once.
type forgetful struct {
	outbox.Store
	failures int
}

func (s *forgetful) Claim(ctx context.Context, transport string, part outbox.Part, m outbox.ClaimLimit) (outbox.Claim, error) {
	c, err := s.Store.Claim(ctx, transport, part, m)
	if err != nil || len(c.Rows()) == 0 {
		return c, err
	}
	return forgetfulClaim{c, s}, nil
}

type forgetfulClaim struct {
	outbox.Claim
	store *forgetful
}

func (c forgetfulClaim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	if c.store.failures > 0 {
		c.store.failures--
		return errors.Join(c.Claim.Settle(ctx, nil, nil), waybill.ErrUnavailable)
	}
	return c.Claim.Settle(ctx, published, failed)
}

// Kills: settle error swallowed.
func TestWhatIsNotSettledIsNotReported(t *testing.T) {
	y := newYard(t)
	y.cfg.Drain = true
	y.dispatch(step{"a", 1})
	if err := newRelay(t, &forgetful{y.db, 1}, newBroker(), y.cfg).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	y.wantPending("")
	if n := len(y.events.of(waybill.Published)); n != 1 {
		t.Errorf("%d messages reported as published, want 1: the pass that could not settle has none", n)
	}
}

// counted is a publisher that answers later and counts the unconfirmed records.
type counted struct {
	waytest.NoTraits
	open, most atomic.Int64
}

func (p *counted) Publish(_ context.Context, items []outbox.Item, results chan<- outbox.Result) {
	for _, item := range items {
		p.most.Store(max(p.most.Load(), p.open.Add(1)))
		go func() {
			time.Sleep(time.Millisecond)
			p.open.Add(-1)
			results <- outbox.Result{Seq: item.Seq}
		}()
	}
}

// Kills: window arithmetic.
func TestWindowBoundsWhatIsUnconfirmed(t *testing.T) {
	y := newYard(t)
	y.cfg.Drain, y.cfg.Window = true, 3
	for i := range 20 {
		y.dispatch(step{string(rune('a' + i)), 1})
	}
	to := &counted{}
	if err := newRelay(t, y.db, to, y.cfg).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if most := to.most.Load(); most != 3 {
		t.Errorf("%d records were unconfirmed at once, want 3", most)
	}
}
