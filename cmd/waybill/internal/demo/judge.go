package demo

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill"
)

// A Verdict compares the committed messages with the handled ones. Its JSON form is
// stable.
type Verdict struct {
	Seed    uint64  `json:"seed"`
	Orders  int     `json:"orders"`
	Seconds float64 `json:"seconds"`

	Committed  int `json:"committed"`   // messages whose transaction committed
	RolledBack int `json:"rolled_back"` // transactions
	Delivered  int `json:"delivered"`   // by the broker, duplicates included
	Handled    int `json:"handled"`     // messages with an effect

	Lost             int `json:"lost"`              // committed, without an effect and not on the way
	Unfinished       int `json:"unfinished"`        // still on the way when the time was up
	Phantoms         int `json:"phantoms"`          // effects of messages that were never committed
	DuplicateEffects int `json:"duplicate_effects"` // effects beyond the first of a message
	OrderViolations  int `json:"order_violations"`  // per order, in first delivery and in effects

	DuplicatesSuppressed int `json:"duplicates_suppressed"` // by the inbox
	LostAcks             int `json:"lost_acks"`
	HandlerFailures      int `json:"handler_failures"`
	Kills                int `json:"kills"` // of relay processes

	Drained bool `json:"drained"` // everything arrived within the time limit
	OK      bool `json:"ok"`
}

func judge(ctx context.Context, site *site, billing *billing, figures *Figures) (Verdict, error) {
	committed, err := site.orders.steps(ctx)
	if err != nil {
		return Verdict{}, fmt.Errorf("verdict: %w", err)
	}
	effects, err := site.billing.steps(ctx)
	if err != nil {
		return Verdict{}, fmt.Errorf("verdict: %w", err)
	}
	onTheWay, err := underWay(ctx, site)
	if err != nil {
		return Verdict{}, err
	}
	v := compare(committed, effects, onTheWay)
	v.OrderViolations += unordered(committed, billing.seen.order)
	v.RolledBack, v.Delivered = int(figures.rolledBack.Load()), int(figures.delivered.Load())
	v.DuplicatesSuppressed, v.LostAcks = int(figures.suppressed.Load()), int(figures.lostAcks.Load())
	v.HandlerFailures, v.Kills = int(figures.failures.Load()), int(figures.kills.Load())
	v.OK = v.Lost+v.Phantoms+v.DuplicateEffects+v.OrderViolations == 0
	return v, nil
}

// underWay returns the messages that wait in the outbox or in the broker.
func underWay(ctx context.Context, site *site) (map[waybill.MessageID]bool, error) {
	waiting, err := site.orders.pending(ctx)
	if err != nil {
		return nil, fmt.Errorf("verdict: %w", err)
	}
	rest, err := site.broker.rest(ctx)
	if err != nil {
		return nil, fmt.Errorf("verdict: %w", err)
	}
	ids := map[waybill.MessageID]bool{}
	for _, id := range append(waiting, rest...) {
		ids[id] = true
	}
	return ids, nil
}

// compare counts the differences between the effects and the committed messages.
func compare(committed, effects []step, onTheWay map[waybill.MessageID]bool) Verdict {
	v := Verdict{Committed: len(committed)}
	times := make(map[waybill.MessageID]int, len(effects))
	latest := map[int]int{} // by order
	for _, e := range effects {
		if times[e.id]++; times[e.id] > 1 {
			v.DuplicateEffects++
			continue
		}
		if e.step != latest[e.order]+1 {
			v.OrderViolations++
		}
		latest[e.order] = max(latest[e.order], e.step)
	}
	for _, c := range committed {
		switch {
		case times[c.id] > 0:
			v.Handled++
		case onTheWay[c.id]:
			v.Unfinished++
		default:
			v.Lost++
		}
	}
	v.Phantoms = len(times) - v.Handled
	return v
}

// unordered counts first deliveries that came before an earlier step of their
// order.
func unordered(committed []step, deliveries []firstDelivery) int {
	stepOf := make(map[waybill.MessageID]int, len(committed))
	for _, c := range committed {
		stepOf[c.id] = c.step
	}
	violations := 0
	latest := map[string]int{}
	for _, d := range deliveries {
		if stepOf[d.id] < latest[d.key] {
			violations++
		}
		latest[d.key] = max(latest[d.key], stepOf[d.id])
	}
	return violations
}
