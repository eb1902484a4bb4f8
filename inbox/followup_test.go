package inbox_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
)

type follow struct{}

func (follow) MessageName() string { return "follow.up" }

// outbound is a transport that counts.
type outbound struct{ sent int }

func (o *outbound) Send(context.Context, *waybill.Record) error {
	o.sent++
	return nil
}

func (p *fixture) routesFollowUps() *outbound {
	out := new(outbound)
	p.bus.AddSender("out", out)
	p.bus.Route("follow.*", "out")
	waybill.Register[follow](p.bus.Types(), "")
	return out
}

// A follow-up is sent after the commit: were that to fail, the retry would be a
// duplicate, and the follow-up lost.
func TestFollowUpOfAHandlerWithAnInboxIsRefused(t *testing.T) {
	for name, opts := range map[string][]inbox.Option{"alone": nil, "in a group": {inbox.Group(2)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newFixture(t)
				out := p.routesFollowUps()
				inbox.Handle(p.bus, p.db, "billing", func(ctx context.Context, tx *memory.Tx, m paid) error {
					tx.OnCommit(func() { p.effects = append(p.effects, m.Invoice) })
					if m.Invoice == "i-2" {
						return nil
					}
					_, err := p.bus.Dispatch(ctx, follow{}, waybill.DispatchAfterCurrentBus{})
					return err
				}, opts...)
				done := make(chan struct{})
				go func() {
					defer close(done)
					if err := p.receive(p.record("i-2")); err != nil {
						t.Error(err)
					}
				}()
				err := p.receive(p.record("i-1"))
				<-done
				if err == nil || !waybill.IsUnrecoverable(err) || !strings.Contains(err.Error(), "dispatch it through the outbox with the handler's transaction") {
					t.Errorf("error = %v, want an unrecoverable one that says to use the outbox", err)
				}
				p.wantEffects("i-2")
				if out.sent != 0 {
					t.Errorf("%d follow-ups sent, want none", out.sent)
				}
			})
		})
	}
}

// A message handled in place is part of its dispatch, and its follow-ups as well:
// their error reaches the transaction before its commit.
func TestFollowUpOfAMessageHandledInsideIsSentBeforeTheCommit(t *testing.T) {
	p := newFixture(t)
	out := p.routesFollowUps()
	waybill.Handle(p.bus, "audit", func(ctx context.Context, _ inner) error {
		_, err := p.bus.Dispatch(ctx, follow{}, waybill.DispatchAfterCurrentBus{})
		return err
	})
	p.handle("billing", func(ctx context.Context, _ *memory.Tx, _ paid) error {
		_, err := p.bus.Dispatch(ctx, inner{})
		if out.sent != 1 {
			t.Errorf("%d follow-ups sent inside the transaction, want 1", out.sent)
		}
		return err
	})
	if err := p.receive(p.record("i-1")); err != nil {
		t.Fatal(err)
	}
	p.wantEffects("billing i-1")
}

type inner struct{}

func (inner) MessageName() string { return "inner" }
