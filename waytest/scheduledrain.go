package waytest

import (
	"context"
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// awake are the messages that a claim may have.
func (m *schedule[TX]) awake() (all []order) {
	for key, seqs := range m.waiting {
		for _, seq := range seqs {
			o := order{key, seq}
			if !m.asleep[o] {
				all = append(all, o)
			}
			if key != "" && m.failures[o] > 0 {
				break // a failed head is retried alone
			}
		}
	}
	return all
}

// drain ends all open transactions and publishes all remaining messages.
func (m *schedule[TX]) drain(rt *rapid.T) {
	for len(m.open) > 0 {
		o := m.open[0]
		m.open = m.open[1:]
		must(rt, o.end(true))
		m.commit(o.sent)
		m.letGo(rt)
	}
	if m.operator != nil {
		_, err := m.operator.Release(context.Background(), admin.BlockedQuery{})
		must(rt, err)
		clear(m.asleep)
	}
	for start := time.Now(); ; {
		for _, h := range m.held {
			must(rt, h.Settle(context.Background(), h.Rows(), nil))
			for _, o := range h.rows {
				m.leave(o)
			}
		}
		m.held = nil
		if m.count() == 0 && len(m.delayed) == 0 {
			break
		}
		if time.Since(start) > patience {
			rt.Fatalf("these never came: %v, and delayed %v; %s", m.waiting, m.delayed, m.listing())
		}
		for _, part := range parts {
			m.claimBy(rt, 0, part, manyRows)
		}
	}
	if left, err := m.Store.Backlog(context.Background(), outbox.DefaultTransport); err != nil || left != (outbox.Backlog{}) {
		rt.Fatalf("Backlog in the end = %+v, %v", left, err)
	}
}

// listing returns the store's own view of its rows.
func (m *schedule[TX]) listing() string {
	if m.operator == nil {
		return "no listing"
	}
	ctx := context.Background()
	blocked, err := m.operator.Blocked(ctx, "", 0)
	rows, err2 := m.operator.Outbox(ctx, admin.OutboxQuery{})
	return fmt.Sprintf("blocked %+v (%v), outbox %+v (%v)", blocked, err, rows, err2)
}

// abandon ends the claims and transactions of a failed check, and clears the
// outbox.
func (m *schedule[TX]) abandon() {
	ctx := context.Background()
	for _, h := range m.held {
		_ = h.Settle(ctx, nil, nil)
	}
	for _, o := range m.open {
		_ = o.end(false)
	}
	if m.behind != nil {
		<-m.done
	}
	for start := time.Now(); time.Since(start) < patience; {
		if m.operator != nil {
			_, _ = m.operator.Release(ctx, admin.BlockedQuery{})
		}
		_, _ = visit(m.Store, outbox.DefaultTransport, true)
		if left, err := m.Store.Backlog(ctx, outbox.DefaultTransport); err == nil && left == (outbox.Backlog{}) {
			return
		}
	}
}
