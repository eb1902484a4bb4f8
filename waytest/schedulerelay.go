package waytest

import (
	"context"
	"errors"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// relay draws one.
func (m *schedule[TX]) relay(rt *rapid.T) int {
	return rapid.IntRange(0, len(m.relays)-1).Draw(rt, "relay")
}

// unreachable reports whether err is of a connection that was cut.
func (r relayProcess) unreachable(err error) bool {
	return r.cut != nil && *r.cut && errors.Is(err, waybill.ErrUnavailable)
}

func (m *schedule[TX]) claim(rt *rapid.T) {
	if len(m.held) == 3 {
		rt.SkipNow()
	}
	by := m.relay(rt)
	m.claimBy(rt, by, rapid.SampledFrom(parts).Draw(rt, "part"), outbox.ClaimLimit{Rows: rapid.IntRange(1, 12).Draw(rt, "rows"), Bytes: 1 << 20})
}

// claimBy compares a claim with the model, and holds it.
func (m *schedule[TX]) claimBy(rt *rapid.T, by int, part outbox.Part, limit outbox.ClaimLimit) {
	c, err := m.relays[by].Claim(context.Background(), outbox.DefaultTransport, part, limit)
	if m.relays[by].unreachable(err) {
		return
	}
	must(rt, err)
	if len(c.Rows()) == 0 {
		return
	}
	var rows []order
	for _, row := range c.Rows() {
		rows = append(rows, bodyOf(row.Record))
	}
	others := m.held
	m.held = append(m.held, heldClaim{c, by, rows}) // whatever comes, it will be let go
	must(rt, m.see(rows))
	for i, row := range c.Rows() {
		o := rows[i]
		for _, h := range others {
			if slices.ContainsFunc(h.rows, func(other order) bool { return other == o || o.Key != "" && other.Key == o.Key }) {
				rt.Fatalf("claim of %v: another relay has %v", rows, h.rows)
			}
		}
		switch {
		case m.routes:
		case m.asleep[o]:
			rt.Fatalf("claim of %v: %v was refused for an hour", rows, o)
		case row.Failures != m.failures[o]:
			rt.Fatalf("claim of %v: %v has failed %d times, want %d", rows, o, row.Failures, m.failures[o])
		}
	}
}

// settle ends a claim with some rows published, some refused, and some without a
// result.
func (m *schedule[TX]) settle(rt *rapid.T) {
	if len(m.held) == 0 {
		rt.SkipNow()
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(rt, "claim")
	h := m.held[i]
	var published []outbox.ClaimedRow
	var failed []outbox.Failure
	stopped := map[string]bool{}
	for j, row := range h.Rows() {
		o := h.rows[j]
		if stopped[o.Key] {
			continue
		}
		switch rapid.IntRange(0, 5).Draw(rt, "answer") {
		case 0: // refused, for now or for long
			waits := []time.Duration{0, 3 * time.Millisecond}
			if m.operator != nil {
				waits = append(waits, time.Hour)
			}
			wait := rapid.SampledFrom(waits).Draw(rt, "wait")
			route := m.routes && rapid.IntRange(0, 2).Draw(rt, "route") == 0
			failed = append(failed, outbox.Failure{Row: row, Err: errRefused, RetryIn: wait, Route: route && row.Failures == 0 || row.Route})
			m.failures[o]++
			m.asleep[o] = wait == time.Hour
			stopped[o.Key] = o.Key != ""
		case 1: // an outage
			stopped[o.Key] = o.Key != ""
		default:
			published = append(published, row)
			m.leave(o)
		}
	}
	m.held = slices.Delete(m.held, i, i+1)
	must(rt, h.Settle(context.Background(), published, failed))
}

// crash ends a relay between publishing and settling, or its connections: its
// claims are released, as if nothing had happened.
func (m *schedule[TX]) crash(rt *rapid.T) {
	if len(m.held) == 0 {
		rt.SkipNow()
	}
	h := m.held[rapid.IntRange(0, len(m.held)-1).Draw(rt, "claim")]
	r := m.relays[h.by]
	if r.crash == nil {
		m.held = slices.DeleteFunc(m.held, func(other heldClaim) bool { return other.Claim == h.Claim })
		must(rt, h.Settle(context.Background(), nil, nil))
		return
	}
	r.crash()
	*r.cut = true
	m.held = slices.DeleteFunc(m.held, func(other heldClaim) bool {
		if other.by != h.by {
			return false
		}
		if err := other.Settle(context.Background(), other.Rows(), nil); err == nil {
			rt.Errorf("Settle of %v by a connection that was cut = nil", other.rows)
		}
		return true
	})
}

func (m *schedule[TX]) release(rt *rapid.T) {
	if m.operator == nil {
		rt.SkipNow()
	}
	q := admin.BlockedQuery{Key: rapid.SampledFrom(append([]string{"", m.slow}, m.keys...)).Draw(rt, "released")}
	if m.routes && q.Key == "" {
		q.Route = rapid.SampledFrom([]string{"x", "y", ""}).Draw(rt, "released route")
	}
	_, err := m.operator.Release(context.Background(), q)
	must(rt, err)
	for o := range m.asleep {
		if q.Key == "" || o.Key == q.Key {
			delete(m.asleep, o)
		}
	}
}
