package demo

import (
	"context"
	"fmt"
	"strconv"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/verdict"
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

func judge(ctx context.Context, site *deployment, billing *billing, figures *Figures) (Verdict, error) {
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
	v := compare(committed, effects, billing.seen.order, onTheWay)
	v.RolledBack, v.Delivered = int(figures.rolledBack.Load()), int(figures.delivered.Load())
	v.DuplicatesSuppressed, v.LostAcks = int(figures.suppressed.Load()), int(figures.lostAcks.Load())
	v.HandlerFailures, v.Kills = int(figures.failures.Load()), int(figures.kills.Load())
	v.OK = v.Lost+v.Phantoms+v.DuplicateEffects+v.OrderViolations == 0
	return v, nil
}

// underWay returns the messages that wait in the outbox or in the broker.
func underWay(ctx context.Context, site *deployment) (map[waybill.MessageID]bool, error) {
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

// compare counts the differences between the effects and the committed messages, and
// between these and first deliveries.
func compare(committed, effects []step, deliveries []waybill.MessageID, onTheWay map[waybill.MessageID]bool) Verdict {
	all, byID := messages(committed), map[waybill.MessageID]verdict.Message{}
	var first []verdict.Message
	for i, c := range committed {
		byID[c.id] = all[i]
	}
	for _, id := range deliveries {
		if m, ok := byID[id]; ok { // or its effect is a phantom
			first = append(first, m)
		}
	}
	done, delivered := verdict.Compare(all, messages(effects)), verdict.Compare(all, first)
	v := Verdict{Committed: len(committed), Phantoms: done.Phantoms + done.IDChanges, DuplicateEffects: done.Duplicates, OrderViolations: done.Disorders + delivered.Disorders}
	for i, c := range committed {
		switch {
		case done.Has(all[i]):
			v.Handled++
		case onTheWay[c.id]:
			v.Unfinished++
		default:
			v.Lost++
		}
	}
	return v
}

// messages returns steps as package verdict compares them.
func messages(steps []step) []verdict.Message {
	all := make([]verdict.Message, len(steps))
	for i, s := range steps {
		all[i] = verdict.Message{Key: strconv.Itoa(s.order), N: s.step, ID: s.id.String()}
	}
	return all
}
